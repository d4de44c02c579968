-- Returns the lists of nodes in use, each followed by the ms that remain to it. KEYS: the lists (see views.lua).

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answer = {}
for line in (redis.call('GET', KEYS[1]) or ''):gmatch('[^\n]+') do
  local ends, view = line:match('^%d+ %d+ %d+ (%d+) %S+ (.+)$')
  if ends and tonumber(ends) > now then
    answer[#answer + 1] = view
    answer[#answer + 1] = ('%.0f'):format(tonumber(ends) - now)
  end
end
return answer
