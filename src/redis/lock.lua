-- All requests of one call, in order: KEYS[i] with ARGV[i], which is one string (a server takes longer over several): the
-- operation in one character, the owner token in 36, numbers of 16 digits each as named below, and the TTL (ms) in the
-- rest. Times are in microseconds of the node's clock.
--
--   a  acquire   set the key if it is free, and count       last moment, first moment, seed, oldest counter, retention (ms); TTL
--   s  set       set the key if it is free                  last moment, first moment; TTL
--   m  mend      set the key if it is free, and raise the counter
--                                          last moment, first moment, seed, oldest counter, retention (ms), the token; TTL
--   f  fence     raise the counter, if the key is ours      the token
--   e  extend    let it live for the TTL from now           last moment, first moment; TTL
--   r  release   delete the key if it is ours, and announce it; raise the counter, where one is given, whoever holds it
--                                                           the counter, or zero; what to announce (script.rs), or nothing
--   w  wait      announce that a process waits. No owner token: all of it is what is announced (script.rs)
--
-- The last entry of KEYS is the key of the node's record, the last of ARGV the 34 characters that the record begins with,
-- as far as the client knows, and what the channels of this database end in. A node whose record begins otherwise has
-- another memory than the client takes it for: it releases, and does nothing else.
--
-- Announcements go to the channel that has the lock's name with CHANNEL behind it. That of a release has the owner token that was
-- released behind its first character.
--
-- The counter of a lock has the lock's name with COUNTER behind it. It is not among the keys, as it would have to be in a
-- cluster: a node is never a member of one, and every argument takes the client time.
--
-- The answer has an entry a request: the counter where one is counted or raised; HEARD where a release was announced to anybody;
-- otherwise a number of those below; {remaining ms, that token} where another token is there; or an error's text. Behind them,
-- where it was looked at, the node's time in microseconds. Errors are caught one by one, so that no request spoils the others.
--
-- Numbers stay below 2^53: exact as Lua numbers, but not in the way Lua prints those by itself. Digits become a number by + 0,
-- which is faster than a call of tonumber.
--
-- All of this text runs with each call, and mostly for a single "a" or "r": so there are few functions and no tables that have to
-- be made first.

local HEARD, DONE, TOO_LATE, MISSING, FOREIGN, OTHER_MEMORY, TOO_EARLY = 1, 0, -1, -2, -3, -4, -5
local COUNTER, CHANNEL = '#fence', '#free'

-- Starts a counter anew that was missing, or is older than this memory, at no less than "least" and than "oldest": what it
-- is then, or an error (F5).
local function start(counter, item, now, oldest, least)
  local seed = item:sub(70, 85) + 0
  -- A seed that is more than a second off is not believed.
  if math.abs(seed - now) > 1000000 then seed = now end
  seed = math.max(seed, oldest, least)
  local text, retention = ('%.0f'):format(seed), item:sub(102, 117) + 0
  local set
  if retention > 0 then
    set = redis.pcall('SET', counter, text, 'PX', ('%.0f'):format(retention))
  else
    set = redis.pcall('SET', counter, text)
  end
  return set.err or seed
end

-- Lets a counter live on for as long as this request wants, where another client has started it with a shorter life. A counter
-- shows when it was started; one that is ahead of the clock does not.
local function lengthen(counter, f, item, now)
  local left = redis.pcall('PTTL', counter)
  if type(left) == 'table' or left < 0 then return end
  local retention = item:sub(102, 117) + 0
  if retention == 0 then
    redis.pcall('PERSIST', counter)
  elseif f < now + 1000000 then
    local life = retention - math.floor((now - f) / 1000)
    if life > left + 1000 then redis.pcall('PEXPIRE', counter, ('%.0f'):format(life)) end
  end
end

-- Adds up to the token, and so keeps the expiry. Written even where nothing changes: a replica shall refuse, not agree.
local function raise(counter, from, to)
  return redis.pcall('INCRBY', counter, ('%.0f'):format(math.max(to - from, 0)))
end

local last = #KEYS

-- W2: tells processes that listen for the lock's releases. A user who may not do so does without.
local function announce(key, text)
  local told = redis.pcall('PUBLISH', key .. CHANNEL .. ARGV[last]:sub(35), text)
  return type(told) == 'number' and told > 0 and HEARD or DONE
end

local function release(key, item)
  local deleted = redis.pcall('DEL', key)
  if type(deleted) == 'table' then return deleted end
  if #item < 54 then return DONE end
  return announce(key, item:sub(54, 54) .. item:sub(2, 37) .. item:sub(55))
end

local now, known
local answer = {}

for i = 1, last - 1 do
  local key, item = KEYS[i], ARGV[i]
  local operation, token = item:sub(1, 1), item:sub(2, 37)
  local reply, holder
  local releases = operation == 'r'
  -- Where the TTL stands in requests that have one: those for which the time is looked at.
  local ttl = operation == 'a' and 118 or (operation == 'e' or operation == 's') and 70 or operation == 'm' and 134
  if ttl and not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  if known == nil and not releases then
    local record = redis.pcall('GET', KEYS[last])
    known = type(record) == 'string' and record:sub(1, 34) == ARGV[last]:sub(1, 34)
  end
  if not releases and not known then
    reply = OTHER_MEMORY
  elseif ttl and now > item:sub(38, 53) + 0 then
    -- A9: what was under way for too long refuses itself.
    reply = TOO_LATE
  elseif operation == 'a' or operation == 's' or operation == 'm' then
    if now < item:sub(54, 69) + 0 then
      -- R2: what this node was told before its memory began may still be held.
      reply = TOO_EARLY
    else
      local set = redis.pcall('SET', key, token, 'NX', 'PX', item:sub(ttl))
      if not set then holder = redis.pcall('GET', key) end
      if set and set.err then
        reply = set.err
      elseif set or holder == token then
        -- A7: the own token is as good as having set it.
        local counter, oldest = key .. COUNTER, operation ~= 's' and item:sub(86, 101) + 0
        if operation == 'a' then
          -- F1: counts a grant.
          reply = redis.pcall('INCR', counter)
          if type(reply) == 'number' then
            if reply < oldest then
              reply = start(counter, item, now, oldest, 0)
            else
              lengthen(counter, reply, item, now)
            end
          end
        elseif operation == 'm' then
          -- E4: the node learns of a lease that it did not grant. Nothing is counted.
          reply = redis.pcall('GET', counter)
          if type(reply) ~= 'table' then
            local f, to = tonumber(reply or 0) or 0, item:sub(118, 133) + 0
            if f < oldest then
              reply = start(counter, item, now, oldest, to)
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
      elseif not holder then
        reply = MISSING
      elseif type(holder) == 'table' then
        reply = holder.err
      else
        local left = redis.pcall('PTTL', key)
        -- W3
        reply = type(left) == 'table' and left.err or { left, #holder == 36 and holder or '' }
      end
    end
  elseif operation == 'w' then
    reply = announce(key, item)
  elseif operation == 'f' or releases and item:sub(38, 53) + 0 > 0 then
    local counter = key .. COUNTER
    local both = redis.pcall('MGET', key, counter)
    if both.err then
      reply = both.err
    else
      local from, to = tonumber(both[2]), item:sub(38, 53) + 0
      if not both[1] then
        -- R5: MGET has other data than a string as nothing.
        local there = redis.pcall('GET', key)
        reply = there and there.err or MISSING
      elseif both[1] ~= token then
        reply = FOREIGN
      elseif releases then
        reply = release(key, item)
      else
        -- F3. Without its counter, a node certifies nothing.
        reply = from and raise(counter, from, to) or MISSING
      end
      if type(reply) == 'table' then reply = reply.err end
      -- F4: for the next one only, so that it may as well fail.
      if releases and from and from < to then raise(counter, from, to) end
    end
  else
    holder = redis.pcall('GET', key)
    if not holder then
      reply = MISSING
    elseif type(holder) == 'table' then
      reply = holder.err
    elseif holder ~= token then
      reply = FOREIGN
    elseif releases then
      reply = release(key, item)
    else
      -- E1: never shortens. Written even where nothing changes, as above.
      local left = redis.pcall('PTTL', key)
      local text = item:sub(ttl)
      if type(left) == 'table' then
        reply = left
      else
        reply = redis.pcall('PEXPIRE', key, left > tonumber(text) and left or text)
      end
      -- A memory that has just begun counts for nothing, though it may keep the key.
      if type(reply) ~= 'table' then reply = now < item:sub(54, 69) + 0 and TOO_EARLY or DONE end
    end
    if type(reply) == 'table' then reply = reply.err end
  end
  answer[i] = reply
end
if now then answer[last] = now end
return answer
