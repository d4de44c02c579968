-- Registers a client's list of nodes, and returns the other lists in use (M4).
--
--   KEYS   the lists in use; the node's record; this client's description
--   ARGV   the 34 characters that the record begins with; the act; the lease (ms); this client's list; who the client is; for how
--          long (ms) it may take locks without another look; then the other lists that it knows
--
-- The act is "look" to read only, "add" to register unless there is an unknown list, "keep" to register in any case.
--
-- The first key has one line for each list: when it was added, when it was last confirmed, for how long after that locks may be
-- taken under it, when it ends, who confirmed it last, the list. Times are in ms of the node's clock. A line is never removed
-- before its end: a lease may have been confirmed under its list.
--
-- Returns -4 if the node has another memory. Otherwise returns 1 if this client's list is there now, or 0; for how many ms the
-- oldest list has been there that this client knows; when this client last registered, or 0; the time; and a table of the other
-- lists. Each has four entries: the list, for how many ms more it is in use, for how many ms more locks may be taken under it,
-- who confirmed it last.

local stamp, act, lease, own, who, fresh = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], tonumber(ARGV[6])
local record = redis.call('GET', KEYS[2])
if not record or record:sub(1, 34) ~= stamp then return -4 end

local known = {}
for i = 7, #ARGV do known[ARGV[i]] = true end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lines, others, strange = {}, {}, false
local added, oldest, last = now, now, now + lease
local longest = last
for line in (redis.call('GET', KEYS[1]) or ''):gmatch('[^\n]+') do
  local since, confirmed, locks, ends, user, view = line:match('^(%d+) (%d+) (%d+) (%d+) (%S+) (.+)$')
  since, confirmed, locks, ends = tonumber(since), tonumber(confirmed), tonumber(locks), tonumber(ends)
  if ends and confirmed > now then
    -- The clock was put back since. The line counts from now, or it would last until the clock has caught up.
    since, confirmed, ends = math.min(since, now), now, now + ends - confirmed
    line = ('%.0f %.0f %.0f %.0f %s %s'):format(since, confirmed, locks, ends, user, view)
  end
  if ends and ends > now then
    if view == own then
      -- Another client of the same list may need it for longer.
      added, last = math.min(since, now), math.max(last, ends)
      fresh = math.max(fresh, confirmed + locks - now)
      oldest = math.min(oldest, added)
    else
      if known[view] then oldest = math.min(oldest, since) else strange = true end
      lines[#lines + 1] = line
      local n = #others
      others[n + 1], others[n + 2] = view, ends - now
      others[n + 3], others[n + 4] = math.max(confirmed + locks - now, 0), user
    end
    longest = math.max(longest, ends)
  end
end

local there, told = 0, (redis.call('GET', KEYS[3]) or '0 '):match('^(%d+) ')
if act == 'keep' or act == 'add' and not strange then
  lines[#lines + 1] = ('%.0f %.0f %.0f %.0f %s %s'):format(added, now, fresh, last, who, own)
  redis.call('SET', KEYS[1], table.concat(lines, '\n'), 'PX', ('%.0f'):format(math.max(longest, last) - now))
  redis.call('SET', KEYS[3], ('%.0f %s %s'):format(now, who, own), 'PX', ('%.0f'):format(lease))
  there = 1
end
return { there, now - oldest, tonumber(told), now, others }
