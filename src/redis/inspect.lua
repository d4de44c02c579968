-- Returns what a node has of locks, without changing anything.
--
--   KEYS   the keys of locks
--
-- Returns five entries for each key: 0 if there is none, 1 for a string, 2 for other data; the beginning of the string; for how
-- many ms more it lives (-1: for ever); its counter, or an empty string; for how many ms more the counter lives.

local answer = {}
for i, key in ipairs(KEYS) do
  local n, counter = 5 * i - 5, key .. '#fence'
  local value, count = redis.pcall('GET', key), redis.pcall('GET', counter)
  local kind = value and (type(value) == 'string' and 1 or 2) or 0
  answer[n + 1], answer[n + 2] = kind, kind == 1 and value:sub(1, 64) or ''
  answer[n + 3] = kind == 0 and -2 or redis.call('PTTL', key)
  answer[n + 4] = type(count) == 'string' and count:sub(1, 20) or count and '?' or ''
  answer[n + 5] = count and redis.call('PTTL', counter) or -2
end
return answer
