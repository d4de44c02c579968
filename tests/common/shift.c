/* Shifts the time of day of a server that loads this (LD_PRELOAD). The file named by QUORLOCK_CLOCK_SHIFT has the shift: 64 bits,
   in microseconds. It may change while the server runs. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift;

__attribute__((constructor)) static void load(void) {
    const char *path = getenv("QUORLOCK_CLOCK_SHIFT");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *map = mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) shift = map;
    close(file);
}

static struct timespec shifted(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    if (shift) {
        int64_t nanos = now.tv_nsec + *shift % 1000000 * 1000;
        now.tv_sec += *shift / 1000000 + nanos / 1000000000 - (nanos < 0);
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
