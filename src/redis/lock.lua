-- All requests of one call, in order: KEYS[i] with ARGV[i], which is one string (a server takes longer over three):
-- the operation in one character, the owner token in 36, the last moment to act (us) in 19, and the TTL (ms) in the rest.
--
--   a  acquire   set the key if it is free
--   h  held      only ask who holds it
--   e  extend    let it live for the TTL from now, if it holds the token
--   r  release   delete it, if it holds the token
--
-- The answer has an entry a request: a number as below, {remaining ms} where another token is there, or an error's text.
-- Behind them, where it was looked at, the node's time: seconds and microseconds, as strings, since a Lua number would
-- lose digits when printed. Errors are caught one by one, so that no request spoils the others.

local DONE, TOO_LATE, MISSING, FOREIGN = 1, 2, 3, 4

local time, now
local answer = {}
for i = 1, #KEYS do
  local key, item = KEYS[i], ARGV[i]
  local operation, token = item:sub(1, 1), item:sub(2, 37)
  local reply
  if not time and (operation == 'a' or operation == 'e') then
    time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  if operation == 'a' then
    if now > tonumber(item:sub(38, 56)) then
      -- A9: what was under way for too long refuses itself.
      reply = TOO_LATE
    else
      local set = redis.pcall('SET', key, token, 'NX', 'PX', item:sub(57))
      reply = set and (set.err or DONE)
    end
  end
  if not reply then
    local holder = redis.pcall('GET', key)
    if not holder then
      reply = MISSING
    elseif type(holder) == 'table' then
      reply = holder.err
    elseif holder ~= token then
      reply = FOREIGN
      if operation == 'a' or operation == 'h' then
        local left = redis.pcall('PTTL', key)
        reply = type(left) == 'table' and left.err or { left }
      end
    else
      -- A7: for an acquire, the own token is as good as having set it.
      reply = DONE
      local result
      if operation == 'r' then
        result = redis.pcall('DEL', key)
      elseif operation == 'e' then
        -- E1: never shortens. Written even where nothing changes: a replica shall refuse, not agree.
        local left = redis.pcall('PTTL', key)
        local ttl = item:sub(57)
        if type(left) == 'table' then
          result = left
        elseif left > tonumber(ttl) then
          result = redis.pcall('PEXPIRE', key, left)
        else
          result = redis.pcall('PEXPIRE', key, ttl)
        end
      end
      if type(result) == 'table' then reply = result.err end
    end
  end
  answer[i] = reply
end
if time then
  answer[#KEYS + 1] = time[1]
  answer[#KEYS + 2] = time[2]
end
return answer
