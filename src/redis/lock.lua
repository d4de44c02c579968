-- All requests of one call, in order: KEYS[i] with ARGV[i], which is one string (a server takes longer over several): the
-- operation in one character, the owner token in 36, numbers of 16 digits each as named below, and the TTL (ms) in the
-- rest. Times are in microseconds of the node's clock.
--
--   a  acquire   set the key if it is free, and count       last moment, seed, oldest counter, retention (ms); TTL
--   s  set       set the key if it is free                  last moment; TTL
--   m  mend      set the key if it is free, and raise the counter
--                                          last moment, seed, oldest counter, retention (ms), the token; TTL
--   h  held      only ask who holds it
--   f  fence     raise the counter, if the key is ours      the token
--   e  extend    let it live for the TTL from now           last moment; TTL
--   r  release   delete the key if it is ours, and announce it; raise the counter, where one is given, whoever holds it
--                                                           one character: what to announce (script.rs), or - for nothing;
--                                                           the counter, or nothing
--
-- Announcements are published in the channel that has the lock's name with CHANNEL behind it: that character, and the owner
-- token that was released.
--
-- The counter of a lock has the lock's name with COUNTER behind it. It is not among the keys, as it would have to be in a
-- cluster: a node is never a member of one, and every argument takes the client time.
--
-- The answer has an entry a request: the counter where one is counted or raised; how many listen for a release; otherwise a
-- number of those below; {remaining ms, that token, how many listen} where another token is there; or an error's text. Behind
-- them, where it was looked at, the node's time in microseconds. Errors are caught one by one, so that no request spoils the
-- others.
--
-- Numbers stay below 2^53: exact as Lua numbers, but not in the way Lua prints those by itself.
--
-- All of this text runs with each call, and mostly for a single "a" or "r": so there are few functions and no tables that have to
-- be made first.

local DONE, TOO_LATE, MISSING, FOREIGN = 0, -1, -2, -3
local COUNTER, CHANNEL = '#fence', '#free'

-- F5: starts a counter anew that was missing, or is from before the node's last start and may have lost its latest part, at
-- what is not below "least"; what it is then, or an error.
local function start(counter, f, item, now, least)
  local seed = tonumber(item:sub(54, 69))
  -- A second off, and it is not believed.
  if math.abs(seed - now) > 1000000 then seed = now end
  seed = math.max(seed, least)
  if seed <= f then return f end
  local text, retention = ('%.0f'):format(seed), tonumber(item:sub(86, 101))
  local set
  if retention > 0 then
    set = redis.pcall('SET', counter, text, 'PX', ('%.0f'):format(retention))
  else
    set = redis.pcall('SET', counter, text)
  end
  return set.err or seed
end

-- Adds up to the token, and so keeps the expiry. Written even where nothing changes: a replica shall refuse, not agree.
local function raise(counter, from, to)
  return redis.pcall('INCRBY', counter, ('%.0f'):format(math.max(to - from, 0)))
end

-- How many listen for the releases of the lock. Nothing, where the user may not be told.
local function listeners(key)
  return redis.pcall('PUBSUB', 'NUMSUB', key .. CHANNEL)[2]
end

-- W2: deletes the key, and tells those who wait elsewhere.
local function release(key, item)
  local deleted = redis.pcall('DEL', key)
  if type(deleted) == 'table' then return deleted end
  local news = item:sub(38, 38)
  if news == '-' then return DONE end
  local told = redis.pcall('PUBLISH', key .. CHANNEL, news .. item:sub(2, 37))
  -- Deleted it is, whether or not the user may say so.
  if type(told) ~= 'number' or told == 0 then return DONE end
  -- Some of those may listen to everything, and do not wait for this.
  return listeners(key) or told
end

local now
local answer = {}

for i = 1, #KEYS do
  local key, item = KEYS[i], ARGV[i]
  local operation, token = item:sub(1, 1), item:sub(2, 37)
  local reply, holder
  -- Where the TTL stands in requests that have one: those for which the time is looked at.
  local ttl = operation == 'a' and 102 or (operation == 'e' or operation == 's') and 54 or operation == 'm' and 118
  if ttl and not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  if operation == 'a' or operation == 's' or operation == 'm' then
    if now > tonumber(item:sub(38, 53)) then
      -- A9: what was under way for too long refuses itself.
      reply = TOO_LATE
    else
      local set = redis.pcall('SET', key, token, 'NX', 'PX', item:sub(ttl))
      if not set then holder = redis.pcall('GET', key) end
      if set and set.err then
        reply = set.err
      elseif set or holder == token then
        -- A7: the own token is as good as having set it.
        local counter = key .. COUNTER
        if operation == 'a' then
          -- F1: counts a grant.
          reply = redis.pcall('INCR', counter)
          if type(reply) == 'number' and reply < tonumber(item:sub(70, 85)) then
            reply = start(counter, reply, item, now, 0)
          end
        elseif operation == 'm' then
          -- E4: the node learns of a lease that it did not grant. Nothing is counted.
          reply = redis.pcall('GET', counter)
          if type(reply) ~= 'table' then
            local f, to = tonumber(reply or 0) or 0, tonumber(item:sub(102, 117))
            if f < tonumber(item:sub(70, 85)) then
              reply = start(counter, f, item, now, to)
            else
              reply = f < to and raise(counter, f, to) or f
            end
          end
        else
          reply = DONE
        end
        if type(reply) == 'table' then reply = reply.err end
        -- Not counted, so not granted.
        if set and type(reply) == 'string' then redis.pcall('DEL', key) end
      end
    end
    if not reply then operation = 'h' end
  elseif operation == 'f' or operation == 'r' and #item > 38 then
    local counter = key .. COUNTER
    local both = redis.pcall('MGET', key, counter)
    if both.err then
      reply = both.err
    else
      local from, to = tonumber(both[2]), tonumber(item:sub(operation == 'f' and 38 or 39))
      if not both[1] then
        -- R5: MGET has other data than a string as nothing.
        local there = redis.pcall('GET', key)
        reply = there and there.err or MISSING
      elseif both[1] ~= token then
        reply = FOREIGN
      elseif operation == 'f' then
        -- F3. Without its counter, a node certifies nothing.
        reply = from and raise(counter, from, to) or MISSING
      else
        reply = release(key, item)
      end
      if type(reply) == 'table' then reply = reply.err end
      -- F4: for the next one only, so that it may as well fail.
      if operation == 'r' and from and from < to then raise(counter, from, to) end
    end
  end
  if operation == 'e' and now > tonumber(item:sub(38, 53)) then reply = TOO_LATE end
  if not reply then
    if holder == nil then holder = redis.pcall('GET', key) end
    if not holder then
      reply = MISSING
    elseif type(holder) == 'table' then
      reply = holder.err
    elseif holder ~= token then
      reply = FOREIGN
      if operation == 'h' then
        local left = redis.pcall('PTTL', key)
        -- W3. Whoever may not be told how many listen has to do without.
        reply = type(left) == 'table' and left.err or { left, #holder == 36 and holder or '', listeners(key) or 0 }
      end
    else
      reply = DONE
      local result
      if operation == 'r' then
        result = release(key, item)
        if type(result) == 'number' then reply = result end
      elseif operation == 'e' then
        -- E1: never shortens. Written even where nothing changes, as above.
        local left = redis.pcall('PTTL', key)
        local text = item:sub(ttl)
        if type(left) == 'table' then
          result = left
        elseif left > tonumber(text) then
          result = redis.pcall('PEXPIRE', key, left)
        else
          result = redis.pcall('PEXPIRE', key, text)
        end
      end
      if type(result) == 'table' then reply = result.err end
    end
  end
  answer[i] = reply
end
if now then answer[#KEYS + 1] = now end
return answer
