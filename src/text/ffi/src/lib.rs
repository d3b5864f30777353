//! The C interface of tandem_text.h: borders only. Every entry point turns errors and panics into a
//! message for the caller; nothing unwinds into C++.

mod memory_limit;
mod python;
mod template;
mod tokenizer;

use std::os::raw::{c_char, c_int, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use template::Template;
use tokenizer::{Piece, TextTokenizer};

#[global_allocator]
static ALLOCATOR: memory_limit::CountingAllocator = memory_limit::CountingAllocator;

type TextSink = unsafe extern "C" fn(to: *mut c_void, data: *const c_char, size: usize);
type IdSink = unsafe extern "C" fn(to: *mut c_void, ids: *const i32, count: usize);

const OK: c_int = 0;
const ERROR: c_int = 1;

static QUIET_PANICS: Once = Once::new();

/// Runs `body`; sends its error, or the message of its panic, to `error`.
fn guard<T>(
    body: impl FnOnce() -> Result<T, String>,
    error: TextSink,
    error_to: *mut c_void,
) -> Option<T> {
    // The default hook would print; the message goes to the caller instead.
    QUIET_PANICS.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let message = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(message)) => message,
        Err(panic) => {
            let what = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("unknown");
            format!("internal error of the text library: {what}")
        }
    };
    send(&message, error, error_to);
    None
}

fn send(text: &str, sink: TextSink, to: *mut c_void) {
    send_bytes(text.as_bytes(), sink, to);
}

fn send_bytes(bytes: &[u8], sink: TextSink, to: *mut c_void) {
    unsafe { sink(to, bytes.as_ptr().cast(), bytes.len()) }
}

/// # Safety
/// `data` points to `size` readable bytes, or `size` is 0.
unsafe fn bytes<'a>(data: *const c_char, size: usize) -> &'a [u8] {
    if size == 0 {
        return &[];
    }
    std::slice::from_raw_parts(data.cast(), size)
}

/// # Safety
/// As `bytes`.
unsafe fn text<'a>(data: *const c_char, size: usize, what: &str) -> Result<&'a str, String> {
    std::str::from_utf8(bytes(data, size))
        .map_err(|e| format!("{what} is not valid UTF-8 at byte {}", e.valid_up_to()))
}

/// # Safety
/// Pointers as tandem_text.h says; the same holds for every function below.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_load(
    json: *const c_char,
    size: usize,
    error: TextSink,
    error_to: *mut c_void,
) -> *mut TextTokenizer {
    guard(|| TextTokenizer::load(bytes(json, size)), error, error_to)
        .map_or(std::ptr::null_mut(), |t| Box::into_raw(Box::new(t)))
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_free(tokenizer: *mut TextTokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_encode(
    tokenizer: *const TextTokenizer,
    data: *const c_char,
    size: usize,
    add_special_tokens: c_int,
    ids: IdSink,
    ids_to: *mut c_void,
    error: TextSink,
    error_to: *mut c_void,
) -> c_int {
    let encode = || (*tokenizer).encode(text(data, size, "the text")?, add_special_tokens != 0);
    match guard(encode, error, error_to) {
        Some(list) => {
            ids(ids_to, list.as_ptr(), list.len());
            OK
        }
        None => ERROR,
    }
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_decode(
    tokenizer: *const TextTokenizer,
    ids: *const i32,
    count: usize,
    skip_special_tokens: c_int,
    sink: TextSink,
    to: *mut c_void,
    error: TextSink,
    error_to: *mut c_void,
) -> c_int {
    let list = if count == 0 { &[] } else { std::slice::from_raw_parts(ids, count) };
    match guard(|| (*tokenizer).decode(list, skip_special_tokens != 0), error, error_to) {
        Some(string) => {
            send(&string, sink, to);
            OK
        }
        None => ERROR,
    }
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_piece(
    tokenizer: *const TextTokenizer,
    id: i32,
    skip_special_tokens: c_int,
    sink: TextSink,
    to: *mut c_void,
) -> c_int {
    match (*tokenizer).piece(id, skip_special_tokens != 0) {
        Piece::Nothing => 0,
        Piece::Bytes(bytes) => {
            send_bytes(&bytes, sink, to);
            1
        }
        Piece::FallbackByte(byte) => {
            send_bytes(&[byte], sink, to);
            2
        }
        Piece::Text => 3,
    }
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_id_of(
    tokenizer: *const TextTokenizer,
    token: *const c_char,
    size: usize,
) -> i32 {
    std::str::from_utf8(bytes(token, size)).map_or(-1, |t| (*tokenizer).id_of(t))
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_token_of(
    tokenizer: *const TextTokenizer,
    id: i32,
    sink: TextSink,
    to: *mut c_void,
) -> c_int {
    match (*tokenizer).token_of(id) {
        Some(token) => {
            send(&token, sink, to);
            OK
        }
        None => ERROR,
    }
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tandem_tokenizer_id_count(tokenizer: *const TextTokenizer) -> i32 {
    (*tokenizer).id_count()
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tandem_template_compile(
    source: *const c_char,
    source_size: usize,
    globals: *const c_char,
    globals_size: usize,
    error: TextSink,
    error_to: *mut c_void,
) -> *mut Template {
    let compile = || {
        let source = text(source, source_size, "the template")?;
        Template::compile(source, bytes(globals, globals_size))
    };
    guard(compile, error, error_to).map_or(std::ptr::null_mut(), |t| Box::into_raw(Box::new(t)))
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tandem_template_free(template: *mut Template) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

/// # Safety
/// See above.
#[no_mangle]
pub unsafe extern "C" fn tandem_template_render(
    template: *const Template,
    messages: *const c_char,
    messages_size: usize,
    tools: *const c_char,
    tools_size: usize,
    arguments: *const c_char,
    arguments_size: usize,
    add_generation_prompt: c_int,
    sink: TextSink,
    to: *mut c_void,
    error: TextSink,
    error_to: *mut c_void,
) -> c_int {
    let render = || {
        (*template).render(
            bytes(messages, messages_size),
            bytes(tools, tools_size),
            bytes(arguments, arguments_size),
            add_generation_prompt != 0,
        )
    };
    match guard(render, error, error_to) {
        Some(output) => {
            send(&output, sink, to);
            OK
        }
        None => ERROR,
    }
}
