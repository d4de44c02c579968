-- Returns what a node has of locks, without changing anything.
--
--   KEYS   the keys of locks
--
-- Returns six entries for each key: 0 if there is none, 1 for a string, 2 for other data; the beginning of the string; for how
-- many ms more it lives (-1: for ever); its counter, or an empty string; for how many ms more the counter lives; the mark of the
-- last period that is done, or an empty string.

-- The beginning of a string, or false for other data. Values may be large, and a user may lack the right to GETRANGE.
local function beginning(key)
  local value = redis.pcall('GETRANGE', key, 0, 63)
  if type(value) == 'table' and not value.err:find('^WRONGTYPE') then value = redis.pcall('GET', key) end
  if type(value) == 'table' and value.err:find('^WRONGTYPE') then return false end
  return value or ''
end

local answer = {}
for i, key in ipairs(KEYS) do
  local n, counter = 6 * i - 6, key .. '#fence'
  local value, left = beginning(key), redis.call('PTTL', key)
  if type(value) == 'table' then return value end
  local kind = left == -2 and 0 or value and 1 or 2
  local count = redis.pcall('GET', counter)
  answer[n + 1], answer[n + 2], answer[n + 3] = kind, kind == 1 and value:sub(1, 64) or '', left
  answer[n + 4] = type(count) == 'string' and count:sub(1, 20) or count and '?' or ''
  answer[n + 5] = count and redis.call('PTTL', counter) or -2
  local done = redis.pcall('GET', key .. '#done')
  answer[n + 6] = type(done) == 'string' and done:sub(1, 40) or ''
end
return answer
