/* Tampers with a server that loads this (LD_PRELOAD): shifts its time of day, and makes its disk slow. The file named by
   QUORLOCK_TAMPER has the shift, and how long each sync of a file takes: 64 bits each, in microseconds. It may change while the
   server runs. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile struct { int64_t shift, sync; } *tamper;

__attribute__((constructor)) static void load(void) {
    const char *path = getenv("QUORLOCK_TAMPER");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *map = mmap(0, sizeof *tamper, PROT_READ, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) tamper = map;
    close(file);
}

static struct timespec shifted(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    if (tamper) {
        int64_t shift = tamper->shift, nanos = now.tv_nsec + shift % 1000000 * 1000;
        now.tv_sec += shift / 1000000 + nanos / 1000000000 - (nanos < 0);
        now.tv_nsec = (nanos + 1000000000) % 1000000000;
    }
    return now;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now = shifted();
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    time_t now = shifted().tv_sec;
    if (where) *where = now;
    return now;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock != CLOCK_REALTIME) return syscall(SYS_clock_gettime, clock, now);
    *now = shifted();
    return 0;
}

int fdatasync(int file) {
    if (tamper && tamper->sync) usleep(tamper->sync);
    return syscall(SYS_fdatasync, file);
}
