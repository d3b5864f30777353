//! How Python prints, serialises and names things, where a template can see the difference.

use std::borrow::Cow;
use std::ffi::CString;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{from_args, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use crate::template::{too_long, MAX_OUTPUT};

/// Nesting of one value. A request's JSON stops at 128 levels; a template can add its own.
const MAX_DEPTH: usize = 200;

fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// str(value), as `{{ value }}` prints it; undefined prints nothing.
pub fn str(value: &Value) -> Result<Cow<'_, str>, Error> {
    match value.kind() {
        ValueKind::String => Ok(Cow::Borrowed(value.as_str().unwrap_or_default())),
        ValueKind::Undefined => Ok(Cow::Borrowed("")),
        ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            let mut out = String::new();
            repr(value, 0, &mut out)?;
            Ok(Cow::Owned(out))
        }
        _ => Ok(Cow::Owned(value.to_string())),
    }
}

fn check(depth: usize, out: &str) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid("a value is nested too deeply"));
    }
    if out.len() > MAX_OUTPUT {
        return Err(too_long());
    }
    Ok(())
}

fn repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    check(depth, out)?;
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, ["inf", "-inf", "nan"], out)?,
        ValueKind::String => repr_string(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, depth + 1, out)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, depth + 1, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        _ => write!(out, "{value}").map_err(Error::from)?,
    }
    Ok(())
}

fn repr_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            '\0'..='\x1f' | '\x7f'..='\u{a0}' | '\u{ad}' => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// `special`: how infinity, its negative and NaN are written.
fn number(value: &Value, special: [&str; 3], out: &mut String) -> Result<(), Error> {
    if value.is_integer() {
        return write!(out, "{value}").map_err(Error::from);
    }
    let x = f64::try_from(value.clone())?;
    if x.is_finite() {
        out.push_str(&float_repr(x));
    } else {
        out.push_str(special[if x.is_nan() { 2 } else { usize::from(x < 0.0) }]);
    }
    Ok(())
}

/// repr(float): the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
fn float_repr(x: f64) -> String {
    let shortest = format!("{x:e}");
    let digits = shortest.split('e').next().unwrap_or("").matches(|c: char| c.is_ascii_digit());
    // Of two shortest forms that are equally near, Python takes the even one, `{:e}` the upper one;
    // printing to that many digits rounds to even.
    let precision = digits.count().saturating_sub(1);
    let even = format!("{x:.precision$e}");
    let scientific = if even.parse() == Ok(x) { even } else { shortest };
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let decimals = (precision as i32 - exponent).max(1) as usize;
        return format!("{x:.decimals$}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

pub struct JsonStyle {
    pub ensure_ascii: bool,
    /// Text of one level; None prints one line.
    pub indent: Option<String>,
    pub item: String,
    pub key: String,
    pub sort_keys: bool,
}

pub fn indent_text(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_string());
    }
    let width = i64::try_from(value.clone())?;
    // The limit only keeps a typo from printing gigabytes.
    Ok(" ".repeat(width.clamp(0, 1000) as usize))
}

/// json.dumps(value) in `style`.
pub fn json_dumps(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    dump(value, style, 0, &mut out)?;
    Ok(out)
}

fn dump(value: &Value, style: &JsonStyle, depth: usize, out: &mut String) -> Result<(), Error> {
    check(depth, out)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => number(value, ["Infinity", "-Infinity", "NaN"], out)?,
        ValueKind::String => json_string(value.as_str().unwrap_or_default(), style, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            container(items.len(), ['[', ']'], style, depth, out, |i, out| {
                dump(&items[i], style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut items = Vec::new();
            for key in value.try_iter()? {
                items.push((json_key(&key)?, value.get_item(&key)?));
            }
            if style.sort_keys {
                items.sort_by(|a, b| a.0.cmp(&b.0));
            }
            container(items.len(), ['{', '}'], style, depth, out, |i, out| {
                json_string(&items[i].0, style, out);
                out.push_str(&style.key);
                dump(&items[i].1, style, depth + 1, out)
            })?;
        }
        kind => return Err(invalid(format!("a value of type {kind} is not JSON serializable"))),
    }
    Ok(())
}

fn container(
    count: usize,
    brackets: [char; 2],
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
    mut write_item: impl FnMut(usize, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |levels: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(levels));
        }
    };
    out.push(brackets[0]);
    for i in 0..count {
        if i > 0 {
            out.push_str(&style.item);
        }
        new_line(depth + 1, out);
        write_item(i, out)?;
    }
    if count > 0 {
        new_line(depth, out);
    }
    out.push(brackets[1]);
    Ok(())
}

fn json_key(key: &Value) -> Result<String, Error> {
    let mut text = String::new();
    match key.kind() {
        ValueKind::String => text.push_str(key.as_str().unwrap_or_default()),
        ValueKind::None => text.push_str("null"),
        ValueKind::Bool => text.push_str(if key.is_true() { "true" } else { "false" }),
        ValueKind::Number => number(key, ["Infinity", "-Infinity", "NaN"], &mut text)?,
        kind => return Err(invalid(format!("a key of type {kind} is not JSON serializable"))),
    }
    Ok(text)
}

fn json_string(text: &str, style: &JsonStyle, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            c if c < ' ' || (style.ensure_ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `value | length`: 0 of an undefined value, as jinja2's Undefined has it.
pub fn len(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| invalid(format!("a value of type {} has no length", value.kind())))
}

/// `value is sequence`: jinja2 asks for a length and an index, which strings and mappings have too.
pub fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
}

/// `value | int`: the default, 0, of what is no number.
pub fn int(value: &Value, default: Option<Value>) -> Value {
    let of_float = |x: f64| x.is_finite().then(|| Value::from(x.trunc() as i128));
    let converted = match value.kind() {
        ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => Some(value.clone()),
        ValueKind::Number => f64::try_from(value.clone()).ok().and_then(of_float),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default().trim();
            let whole = text.parse::<i128>().map(Value::from).ok();
            whole.or_else(|| text.parse().ok().and_then(of_float))
        }
        _ => None,
    };
    converted.or(default).unwrap_or_else(|| Value::from(0))
}

/// `value | float`: the default, 0.0, of what is no number.
pub fn float(value: &Value, default: Option<Value>) -> Value {
    let converted = match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => value.as_str().unwrap_or_default().trim().parse().ok(),
        _ => None,
    };
    converted.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0))
}

/// Methods of Python's types that minijinja does not know by itself.
pub fn method(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match name {
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            "partition" | "rpartition" => {
                let (separator,): (&str,) = from_args(args)?;
                return partition(text, separator, name == "rpartition");
            }
            "index" => {
                let (part,): (&str,) = from_args(args)?;
                let at = text.find(part).ok_or_else(|| invalid("substring not found"))?;
                return Ok(Value::from(text[..at].chars().count()));
            }
            "rsplit" if !args.is_empty() => {
                let (separator, limit): (&str, Option<i64>) = from_args(args)?;
                return rsplit(text, separator, limit.unwrap_or(-1));
            }
            _ => {}
        }
    }
    if value.kind() == ValueKind::Seq && name == "index" {
        let (item,): (&Value,) = from_args(args)?;
        let at = value.try_iter()?.position(|v| v == *item);
        return at.map(Value::from).ok_or_else(|| invalid("the value is not in the list"));
    }
    // Without a separator or a limit both split alike.
    let name = if name == "rsplit" { "split" } else { name };
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

fn partition(text: &str, separator: &str, from_right: bool) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    let found = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match found {
        Some((left, right)) => [left, separator, right],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(parts.map(Value::from).into_iter().collect())
}

fn rsplit(text: &str, separator: &str, limit: i64) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    let count = usize::try_from(limit).map_or(usize::MAX, |n| n.saturating_add(1));
    let mut parts: Vec<Value> = text.rsplitn(count, separator).map(Value::from).collect();
    parts.reverse();
    Ok(Value::from(parts))
}

/// datetime.now().strftime(format): local time without a zone, so %z and %Z print nothing.
pub fn strftime_now(format: &str) -> Result<String, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut expanded = String::new();
    let mut characters = format.chars();
    while let Some(c) = characters.next() {
        match (c, (c == '%').then(|| characters.next()).flatten()) {
            ('%', Some('f')) => {
                let _ = write!(expanded, "{:06}", now.subsec_micros());
            }
            ('%', Some('z' | 'Z')) => {}
            (c, next) => expanded.extend([Some(c), next].into_iter().flatten()),
        }
    }
    if expanded.is_empty() {
        return Ok(expanded);
    }
    let format = CString::new(expanded).map_err(|_| invalid("a NUL in the format"))?;
    let seconds = now.as_secs() as libc::time_t;
    let mut buffer = [0u8; 1024];
    // SAFETY: tm is plain data that localtime_r fills; strftime writes at most the buffer's size.
    let size = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&seconds, &mut tm).is_null() {
            return Err(invalid("no local time"));
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &tm)
    };
    // 0 means that the text did not fit (or is empty, as "%p" can be in some locales).
    Ok(String::from_utf8_lossy(&buffer[..size]).into_owned())
}
