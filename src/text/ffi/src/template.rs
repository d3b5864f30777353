//! A chat template with the meaning it has in Hugging Face transformers: jinja2's immutable sandbox
//! with trim_blocks, lstrip_blocks and loop controls, plus tojson, raise_exception, strftime_now.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use minijinja::value::{Kwargs, Rest, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde_json::{Map, Value as Json};

use crate::memory_limit::{run_limited, Failure};
use crate::python;

/// Instructions of one rendering. A message costs a few hundred, so this is enough for some tens of
/// thousands of messages, and bounds an endless loop to about a second.
const FUEL: u64 = 10_000_000;

/// Bytes of one rendering: beyond any context length (4 bytes a token, 16 million tokens).
pub const MAX_OUTPUT: usize = 64 << 20;

/// Bytes of a template's source: three times the longest that we know.
const MAX_SOURCE: usize = 128 << 10;

/// Bytes of one expression or statement: eight times the longest that we know. minijinja's compiler
/// takes time that grows with the square of a chain of operators; this keeps it below a second.
const MAX_TAG: usize = 16 << 10;

/// The stack that compiling may use. minijinja's parser and code generator recurse without a limit
/// along chains of operators, filters and elifs, at most once per byte of source; 4 kB for each is
/// several times what they take. Address space only, until a hostile template makes use of it.
const COMPILER_STACK: usize = MAX_SOURCE * 4096;

/// Bytes that a rendering may hold beside its variables: the output four times (it grows by
/// doubling, and a template may build it in a variable first).
const MEMORY: usize = 4 * MAX_OUTPUT;

/// And so many for each byte of input: lists of short texts take some ten times their JSON.
const MEMORY_PER_INPUT: usize = 32;

/// Renderings that may exceed that before a template is not tried again: each loses a thread and
/// its memory.
const MAX_LOST: usize = 4;

const NAME: &str = "chat_template";

thread_local! {
    /// Bytes made by this thread's rendering: printed, in captured blocks too, or by tojson.
    static PRINTED: Cell<usize> = const { Cell::new(0) };
}

pub struct Template {
    environment: Arc<Environment<'static>>,
    globals: Map<String, Json>,
    lost: AtomicUsize,
}

impl Template {
    /// `globals`: a JSON object of variables that a rendering may override.
    pub fn compile(source: &str, globals: &[u8]) -> Result<Self, String> {
        if source.len() > MAX_SOURCE {
            let size = source.len();
            return Err(format!("a template of {size} bytes; the limit is {MAX_SOURCE}"));
        }
        check_tags(source)?;
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .stack_size(COMPILER_STACK)
                .spawn_scoped(scope, || Self::compile_here(source, globals))
                .map_err(|e| format!("no thread to compile the template: {e}"))?
                .join()
                .map_err(|_| "internal error of the template compiler".to_string())?
        })
    }

    fn compile_here(source: &str, globals: &[u8]) -> Result<Self, String> {
        let globals = parse("template variables", globals)?;
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(python::method);
        environment.set_formatter(|output, _, value| {
            let text = python::str(value)?;
            charge(text.len())?;
            output.write_str(&text).map_err(Error::from)
        });
        environment.add_filter("tojson", tojson);
        environment.add_filter("string", |value: &Value| python::str(value).map(String::from));
        environment.add_filter("int", python::int);
        environment.add_filter("float", python::float);
        environment.add_test("sequence", python::is_sequence);
        environment.add_filter("length", python::len);
        environment.add_filter("count", python::len);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", |format: &str| python::strftime_now(format));
        environment
            .add_template_owned(NAME, prepare(source))
            .map_err(|e| format!("syntax error in the chat template: {}", describe(&e)))?;
        Ok(Self { environment: Arc::new(environment), globals, lost: AtomicUsize::new(0) })
    }

    /// `messages`: a JSON array. `tools`: a JSON array or nothing. `arguments`: a JSON object of
    /// more variables or nothing.
    pub fn render(
        &self,
        messages: &[u8],
        tools: &[u8],
        arguments: &[u8],
        add_generation_prompt: bool,
    ) -> Result<String, String> {
        let messages_size = messages.len() + tools.len();
        let arguments_size = arguments.len();
        let mut variables = self.globals.clone();
        let messages: Vec<Json> = parse("messages", messages)?;
        let tools: Option<Vec<Json>> = parse_optional("tools", tools)?;
        let own = [
            ("messages", Json::from(messages)),
            ("tools", Json::from(tools)),
            ("documents", Json::Null),
            ("add_generation_prompt", Json::from(add_generation_prompt)),
        ];
        let arguments: Option<Map<String, Json>> = parse_optional("template arguments", arguments)?;
        for (name, value) in arguments.unwrap_or_default() {
            if name != "documents" && own.iter().any(|(o, _)| *o == name) {
                return Err(format!("template arguments: \"{name}\" has a field of its own"));
            }
            variables.insert(name, value);
        }
        for (name, value) in own {
            variables.entry(name).or_insert(value);
        }
        if self.lost.load(Ordering::Relaxed) >= MAX_LOST {
            return Err(too_much_memory());
        }
        let input = messages_size + arguments_size;
        let variables = Value::from_serialize(&variables);
        let environment = Arc::clone(&self.environment);
        let rendered = run_limited(
            MEMORY.saturating_add(input.saturating_mul(MEMORY_PER_INPUT)),
            move || render_here(&environment, variables),
        );
        match rendered {
            Ok(output) => output,
            Err(Failure::Exceeded) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                Err(too_much_memory())
            }
            Err(Failure::Internal) => Err("internal error of the template renderer".to_string()),
        }
    }
}

fn too_much_memory() -> String {
    format!("the chat template takes more than {} MiB of memory", MEMORY >> 20)
}

fn render_here(environment: &Environment, variables: Value) -> Result<String, String> {
    let template = environment.get_template(NAME).map_err(|e| describe(&e))?;
    PRINTED.set(0);
    let mut output = LimitedOutput(Vec::new());
    template.render_captured_to(variables, &mut output).map_err(|e| describe(&e))?;
    String::from_utf8(output.0).map_err(|e| e.to_string())
}

fn parse<T: serde::de::DeserializeOwned>(what: &str, json: &[u8]) -> Result<T, String> {
    serde_json::from_slice(json).map_err(|e| format!("{what}: {e}"))
}

fn parse_optional<T>(what: &str, json: &[u8]) -> Result<Option<T>, String>
where
    T: serde::de::DeserializeOwned,
{
    if json.is_empty() {
        return Ok(None);
    }
    parse(what, json)
}

/// jinja2 reads any newline as "\n"; `{% generation %}` marks the assistant's text for training and
/// prints its body.
fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut result = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |e| e + 2);
        let word = tag[2..end].trim_end_matches("%}").trim_matches(['-', '+']).trim();
        let replacement = match word {
            "generation" => tag[..end].replacen(word, "if true", 1),
            "endgeneration" => tag[..end].replacen(word, "endif", 1),
            _ => tag[..end].to_string(),
        };
        result.push_str(&replacement);
        rest = &tag[end..];
    }
    result.push_str(rest);
    result
}

/// Refuses tags longer than MAX_TAG; quoted text inside them may hold what would end them.
fn check_tags(source: &str) -> Result<(), String> {
    let bytes = source.as_bytes();
    let mut at = 0;
    while at + 1 < bytes.len() {
        let end: &[u8] = match &bytes[at..at + 2] {
            b"{{" => b"}}",
            b"{%" => b"%}",
            b"{#" => b"#}",
            _ => {
                at += 1;
                continue;
            }
        };
        let begin = at;
        let mut quote = None;
        at += 2;
        while at < bytes.len() && (quote.is_some() || !bytes[at..].starts_with(end)) {
            match (quote, bytes[at]) {
                (Some(_), b'\\') => at += 1,
                (Some(q), byte) if q == byte => quote = None,
                (None, byte @ (b'"' | b'\'')) if end != b"#}" => quote = Some(byte),
                _ => {}
            }
            at += 1;
        }
        if end != b"#}" && at - begin > MAX_TAG {
            let line = 1 + bytes[..begin].iter().filter(|&&byte| byte == b'\n').count();
            return Err(format!("line {line}: a tag of more than {MAX_TAG} bytes"));
        }
    }
    Ok(())
}

struct LimitedOutput(Vec<u8>);

impl io::Write for LimitedOutput {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.0.len() + data.len() > MAX_OUTPUT {
            return Err(io::Error::other(too_long()));
        }
        self.0.extend_from_slice(data);
        Ok(data.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Counts text that was made, so that making it over and over ends too.
fn charge(bytes: usize) -> Result<(), Error> {
    let printed = PRINTED.get().saturating_add(bytes);
    PRINTED.set(printed);
    if printed > MAX_OUTPUT {
        return Err(too_long());
    }
    Ok(())
}

pub fn too_long() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("more than {MAX_OUTPUT} bytes of output"))
}

#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = python::str(message)?.into_owned();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// A raised exception's own words; else the error with its line, and its cause.
fn describe(error: &Error) -> String {
    let mut source = std::error::Error::source(error);
    let mut causes = String::new();
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref::<Raised>() {
            return message.clone();
        }
        causes.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    format!("{error}{causes}")
}

/// Hugging Face: tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
fn tojson(value: &Value, positional: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let value = match positional.get(index) {
            Some(value) => Some(value.clone()),
            None => kwargs.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let ensure_ascii = argument(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let indent = argument(1, "indent")?.map(|v| python::indent_text(&v)).transpose()?;
    let separators = argument(2, "separators")?;
    let sort_keys = argument(3, "sort_keys")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let (item, key) = match &separators {
        Some(pair) => {
            let part = |i| -> Result<String, Error> {
                let value = pair.get_item_by_index(i)?;
                python::str(&value).map(String::from)
            };
            (part(0)?, part(1)?)
        }
        None => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
    };
    let style = python::JsonStyle { ensure_ascii, indent, item, key, sort_keys };
    let text = python::json_dumps(value, &style)?;
    charge(text.len())?;
    Ok(text)
}
