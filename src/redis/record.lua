-- Replaces the node's record, if it is still the one that was read (M1).
--
--   KEYS   the record; the lists of nodes in use
--   ARGV   the record that was read, or ''; the new record, or none to read only. If a third part follows, the node's time goes
--          between the second and the third.
--
-- Returns the record as it is now, or ''; 1 if lists are in use, otherwise 0; and the node's time in microseconds.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local found = redis.call('GET', KEYS[1])
if ARGV[2] and (found or '') == ARGV[1] then
  found = ARGV[2]
  if ARGV[3] then found = ('%s%016.0f%s'):format(ARGV[2], now, ARGV[3]) end
  redis.call('SET', KEYS[1], found)
end
return { found or '', redis.call('GET', KEYS[2]) and 1 or 0, now }
