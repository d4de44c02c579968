-- Executes the requests of one call in order: KEYS[i] is a lock, ARGV[i] the request for it. A request is one string, because a
-- server takes longer over several: the operation in one character, the owner token in 36, numbers of 16 digits each, and the TTL
-- (ms) in the rest. Times are in microseconds of the node's clock.
--
--   a  acquire   set the key if it is free, and count       last moment, first moment, seed, oldest counter, retention (ms); TTL
--   s  set       set the key if it is free                  last moment, first moment; TTL
--   m  mend      set the key if it is free, and raise the counter
--                                          last moment, first moment, seed, oldest counter, retention (ms), the token; TTL
--   f  fence     raise the counter, if the key is ours      the token
--   e  extend    let it live for the TTL from now           last moment, first moment; TTL
--   r  release   delete the key if it is ours, and announce that; raise the counter to a given one, whoever holds the key
--                                                           the counter, or zero; the announcement (script.rs), or nothing
--   k  keep      as r, but let the key expire earlier instead of deleting it
--                                                           the counter, or zero; for how long (ms); the announcement
--   d  done     return the mark, if the key is ours; first store the given one, unless the stored one ends later
--                                      the end of the mark, or zero; its length, its life (ms); the latest plausible end
--   w  wait      announce that a process waits. The whole string is the announcement (script.rs), without an owner token
--
-- The last entry of KEYS is the node's record. The last entry of ARGV is the record's beginning as the client knows it (34
-- characters), and the suffix of this database's channels. If the record begins otherwise, the node has another memory: it
-- executes releases only.
--
-- Announcements go to the channel with the lock's name and CHANNEL behind it. That of a release has the owner token behind its
-- first character.
--
-- A counter has the lock's name with COUNTER behind it, a mark (L5) DONE_MARK. They are not in KEYS, as a cluster would require:
-- nodes are in no cluster, and each argument takes the client time.
--
-- The answer has one entry for each request: the counter that was counted or raised; {end, length} of the mark, or DONE without
-- one; NOTIFIED if a listener received the announcement; another of the numbers below; {remaining ms, token} if another token
-- holds the key; or an error's text. If the node's time was read, it follows in microseconds. Errors are caught one by one, so
-- that no request spoils the others.
--
-- Numbers stay below 2^53: exact in Lua, but not in the way Lua prints them by itself. Adding 0 turns digits into a number faster
-- than tonumber.
--
-- All of this text runs with each call, mostly for a single "a" or "r". So there are few functions, and no tables to make first.

local NOTIFIED, DONE, TOO_LATE, MISSING, FOREIGN, OTHER_MEMORY, TOO_EARLY = 1, 0, -1, -2, -3, -4, -5
local COUNTER, CHANNEL, DONE_MARK = '#fence', '#free', '#done'

-- Starts a counter that is missing, or older than this memory, at "least" and "oldest" or above (F5). Returns it, or an error.
local function start(counter, item, now, oldest, least)
  local seed = item:sub(70, 85) + 0
  -- A seed that is more than a second off is replaced by the node's time.
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

-- Lengthens the life of a counter that another client has started with a shorter retention. The counter itself shows when it was
-- started, unless it is ahead of the clock.
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

-- Raises a counter by adding, which keeps its expiry. Adds also 0, so that a replica refuses.
local function raise(counter, from, to)
  return redis.pcall('INCRBY', counter, ('%.0f'):format(math.max(to - from, 0)))
end

local last = #KEYS

-- Publishes an announcement (W2). Returns NOTIFIED if there are listeners, otherwise DONE, also without the right to publish.
local function announce(key, text)
  local told = redis.pcall('PUBLISH', key .. CHANNEL .. ARGV[last]:sub(35), text)
  return type(told) == 'number' and told > 0 and NOTIFIED or DONE
end

-- Deletes a key, or lets it expire earlier (L4), and announces that.
local function release(key, item, keeps)
  local done, from
  if keeps then
    local left, wanted = redis.pcall('PTTL', key), item:sub(54, 69) + 0
    if type(left) == 'table' then return left end
    -- Writes also if nothing changes, so that a replica refuses. A key without an expiry gets one.
    if left >= 0 then wanted = math.min(left, wanted) end
    done, from = redis.pcall('PEXPIRE', key, ('%.0f'):format(wanted)), 70
  else
    done, from = redis.pcall('DEL', key), 54
  end
  if type(done) == 'table' then return done end
  if #item < from then return DONE end
  return announce(key, item:sub(from, from) .. item:sub(2, 37) .. item:sub(from + 1))
end

local now, known
local answer = {}

for i = 1, last - 1 do
  local key, item = KEYS[i], ARGV[i]
  local operation, token = item:sub(1, 1), item:sub(2, 37)
  local reply, holder
  local keeps = operation == 'k'
  local releases = operation == 'r' or keeps
  -- The position of the TTL. Requests with a TTL need the time.
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
    -- The request was in flight for too long (A9).
    reply = TOO_LATE
  elseif operation == 'a' or operation == 's' or operation == 'm' then
    if now < item:sub(54, 69) + 0 then
      -- A lock from before this memory may still be held (R2).
      reply = TOO_EARLY
    else
      local set = redis.pcall('SET', key, token, 'NX', 'PX', item:sub(ttl))
      if not set then holder = redis.pcall('GET', key) end
      if set and set.err then
        reply = set.err
      elseif set or holder == token then
        -- The own token counts as granted (A7).
        local counter, oldest = key .. COUNTER, operation ~= 's' and item:sub(86, 101) + 0
        if operation == 'a' then
          -- Counts the grant (F1).
          reply = redis.pcall('INCR', counter)
          if type(reply) == 'number' then
            if reply < oldest then
              reply = start(counter, item, now, oldest, 0)
            else
              lengthen(counter, reply, item, now)
            end
          end
        elseif operation == 'm' then
          -- This is no grant, so the counter is raised and not counted (E4).
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
        -- A grant that is not counted does not stand.
        if set and type(reply) == 'string' then redis.pcall('DEL', key) end
      elseif not holder then
        reply = MISSING
      elseif type(holder) == 'table' then
        reply = holder.err
      else
        local left = redis.pcall('PTTL', key)
        -- The holder's token shows how the votes are split (W3).
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
        -- MGET returns nothing for data other than a string. GET returns the error (R5).
        local there = redis.pcall('GET', key)
        reply = there and there.err or MISSING
      elseif both[1] ~= token then
        reply = FOREIGN
      elseif releases then
        reply = release(key, item, keeps)
      else
        -- Without the counter, the node certifies nothing (F3).
        reply = from and raise(counter, from, to) or MISSING
      end
      if type(reply) == 'table' then reply = reply.err end
      -- This only saves the next acquire a round trip (F4), so it may fail.
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
      reply = release(key, item, keeps)
    elseif operation == 'd' then
      -- The mark of the last period that is done (L5).
      local mark = key .. DONE_MARK
      local there = redis.pcall('GET', mark)
      if type(there) == 'table' then
        local is_other = there.err:find('^WRONGTYPE')
        reply = is_other and 'ERR the key ' .. mark .. ' holds other data than a mark' or there.err
      else
        local stored_end, length = (there or ''):match('^(%d+):(%d+)$')
        -- More digits than a moment has are no mark.
        if not stored_end or #stored_end > 15 or #length > 15 then stored_end, length = '0', '0' end
        stored_end, length = stored_end + 0, length + 0
        local to, its_length = item:sub(38, 53) + 0, item:sub(54, 69) + 0
        local is_later = length == its_length and stored_end > to and stored_end <= item:sub(86, 101) + 0
        local set
        if to > 0 and not is_later then
          stored_end, length = to, its_length
          local text, life = ('%.0f:%.0f'):format(to, its_length), ('%.0f'):format(item:sub(70, 85) + 0)
          set = redis.pcall('SET', mark, text, 'PX', life)
        end
        reply = set and set.err or stored_end > 0 and length > 0 and { stored_end, length } or DONE
      end
    else
      -- Never shortens the life (E1). Writes also if nothing changes, so that a replica refuses.
      local left = redis.pcall('PTTL', key)
      local text = item:sub(ttl)
      if type(left) == 'table' then
        reply = left
      else
        reply = redis.pcall('PEXPIRE', key, left > tonumber(text) and left or text)
      end
      -- A memory that has just begun keeps the key, but its confirmation does not count (M2).
      if type(reply) ~= 'table' then reply = now < item:sub(54, 69) + 0 and TOO_EARLY or DONE end
    end
    if type(reply) == 'table' and reply.err then reply = reply.err end
  end
  answer[i] = reply
end
if now then answer[last] = now end
return answer
