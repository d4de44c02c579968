//! Runs a script as Redis does: Lua 5.1, `KEYS`, `ARGV`, `redis.call` and `redis.pcall`.

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{Function, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value};

use super::keyspace::{Keyspace, Resp};

/// Redis' environment for scripts. An uncaught error is the answer. Scripts may neither make globals nor read unknown ones.
const AROUND: &str = r"
    local script, execute, KEYS, ARGV = ...
    local globals = { KEYS = KEYS, ARGV = ARGV, redis = { pcall = execute } }
    function globals.redis.call(...)
        local reply = execute(...)
        if type(reply) == 'table' and reply.err then error(reply, 0) end
        return reply
    end
    for name, value in pairs(_G) do globals[name] = value end
    setfenv(script, setmetatable(globals, {
        __index = function(_, name) error('Script attempted to access nonexistent global variable ' .. name) end,
        __newindex = function(_, name) error('Attempt to modify a readonly table: ' .. name) end,
    }))
    return function()
        local done, answer = pcall(script)
        if done or type(answer) == 'table' then return answer end
        return { err = 'ERR ' .. answer }
    end
";

pub(super) struct Runner {
    keyspace: Rc<RefCell<Keyspace>>,
    keys: Arguments,
    args: Arguments,
    script: Function,
    lua: Lua,
}

impl Runner {
    pub(super) fn new(text: &str) -> Runner {
        Runner::build(text).expect("the script does not compile")
    }

    fn build(text: &str) -> mlua::Result<Runner> {
        let lua = Lua::new_with(
            StdLib::STRING | StdLib::TABLE | StdLib::MATH,
            LuaOptions::default(),
        )?;
        let keyspace = Rc::new(RefCell::new(Keyspace::default()));
        let of = keyspace.clone();
        let ok = lua.create_table_from([("ok", "OK")])?;
        let execute = lua.create_function(move |lua, args: MultiValue| {
            let text = |arg| match arg {
                Value::String(text) => Ok(text),
                Value::Integer(number) => lua.create_string(number.to_string()),
                Value::Number(number) => lua.create_string(number.to_string()),
                _ => Err(mlua::Error::runtime("arguments must be strings or integers")),
            };
            let args = args.into_iter().map(text).collect::<mlua::Result<Vec<_>>>()?;
            let args: Vec<_> = args.iter().map(LuaString::as_bytes).collect();
            match of.borrow_mut().execute(&args) {
                // The usual reply. Scripts do not change it.
                Resp::Status("OK") => Ok(Value::Table(ok.clone())),
                reply => into_lua(lua, reply),
            }
        })?;
        let (keys, args) = (Arguments::new(&lua)?, Arguments::new(&lua)?);
        let script = lua.load(text).set_name("@user_script").into_function()?;
        let script = lua
            .load(AROUND)
            .call((script, execute, &keys.table, &args.table))?;
        Ok(Runner {
            keyspace,
            keys,
            args,
            script,
            lua,
        })
    }

    pub(super) fn run<'a>(
        &self,
        keyspace: &mut Keyspace,
        keys: impl Iterator<Item = &'a [u8]>,
        args: impl Iterator<Item = &'a [u8]>,
    ) -> Resp {
        let swap = |with: &mut Keyspace| std::mem::swap(&mut *self.keyspace.borrow_mut(), with);
        swap(keyspace);
        let answer = (self.keys.fill(&self.lua, keys))
            .and_then(|()| self.args.fill(&self.lua, args))
            .and_then(|()| self.script.call(()))
            .and_then(from_lua);
        swap(keyspace);
        answer.expect("Lua ran out of memory")
    }
}

/// `KEYS` or `ARGV`: one table for all calls.
struct Arguments {
    table: Table,
    count: RefCell<usize>,
}

impl Arguments {
    fn new(lua: &Lua) -> mlua::Result<Arguments> {
        Ok(Arguments {
            table: lua.create_table()?,
            count: RefCell::default(),
        })
    }

    fn fill<'a>(&self, lua: &Lua, arguments: impl Iterator<Item = &'a [u8]>) -> mlua::Result<()> {
        let mut count = 0;
        for argument in arguments {
            count += 1;
            self.table.raw_set(count, lua.create_string(argument)?)?;
        }
        let before = self.count.replace(count);
        (count + 1..=before).try_for_each(|at| self.table.raw_set(at, Value::Nil))
    }
}

fn into_lua(lua: &Lua, reply: Resp) -> mlua::Result<Value> {
    Ok(match reply {
        Resp::Nil => Value::Boolean(false),
        Resp::Integer(number) => Value::Number(number as f64),
        Resp::Bulk(bytes) => Value::String(lua.create_string(&*bytes)?),
        Resp::Status(text) => Value::Table(lua.create_table_from([("ok", text)])?),
        Resp::Error(text) => Value::Table(lua.create_table_from([("err", &*text)])?),
        Resp::Array(items) => {
            let items = items.into_iter().map(|item| into_lua(lua, item));
            Value::Table(lua.create_sequence_from(items.collect::<mlua::Result<Vec<_>>>()?)?)
        }
    })
}

fn from_lua(answer: Value) -> mlua::Result<Resp> {
    Ok(match answer {
        Value::Integer(number) => Resp::Integer(number),
        // Redis drops the fraction.
        Value::Number(number) => Resp::Integer(number as i64),
        Value::String(text) => Resp::Bulk((*text.as_bytes()).into()),
        Value::Boolean(true) => Resp::Integer(1),
        Value::Table(table) => {
            if let Value::String(text) = table.raw_get("err")? {
                return Ok(Resp::Error(text.to_string_lossy().into()));
            }
            if let Value::String(text) = table.raw_get("ok")? {
                assert_eq!(text, "OK", "an unknown status");
                return Ok(Resp::Status("OK"));
            }
            let mut items = Vec::new();
            loop {
                match table.raw_get(items.len() + 1)? {
                    Value::Nil => return Ok(Resp::Array(items)),
                    item => items.push(from_lua(item)?),
                }
            }
        }
        _ => Resp::Nil,
    })
}
