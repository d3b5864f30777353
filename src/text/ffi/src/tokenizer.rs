//! A Hugging Face tokenizer, and what one id adds to the decoded text.

use std::collections::HashMap;

use serde_json::Value as Json;
use tokenizers::Tokenizer;

pub struct TextTokenizer {
    tokenizer: Tokenizer,
    id_count: i32,
    /// Of the byte-level decoder: the byte that a character of a token's text stands for.
    byte_of_char: Option<HashMap<char, u8>>,
    byte_fallback: bool,
}

/// What one id is to the decoder.
pub enum Piece {
    /// Unknown, or special and skipped: not part of the text.
    Nothing,
    /// Byte-level decoder: exactly these bytes.
    Bytes(Vec<u8>),
    /// One byte of a run that is decoded as a whole.
    FallbackByte(u8),
    /// Text that may depend on the token before it.
    Text,
}

impl TextTokenizer {
    pub fn load(json: &[u8]) -> Result<Self, String> {
        // Parsed on its own first: the crate's error for broken JSON names an untagged enum only.
        let fields: Json = serde_json::from_slice(json).map_err(|e| format!("not JSON: {e}"))?;
        if !fields.get("model").is_some_and(Json::is_object) {
            return Err("field \"model\" is missing or not an object".into());
        }
        let decoders = decoder_types(&fields["decoder"]);
        let byte_level = decoders.iter().any(|d| d == "ByteLevel");
        if byte_level && decoders.len() > 1 {
            return Err(
                "field \"decoder\": ByteLevel beside other decoders is not supported".into()
            );
        }
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(|e| e.to_string())?;
        // As Hugging Face's encode(): neither unless asked for.
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        let largest = tokenizer.get_vocab(true).into_values().max();
        let id_count = largest.map_or(Ok(0), |id| i32::try_from(u64::from(id) + 1));
        Ok(Self {
            tokenizer,
            id_count: id_count.map_err(|_| "a token id does not fit 31 bits".to_string())?,
            byte_of_char: byte_level.then(byte_of_char),
            byte_fallback: decoders.iter().any(|d| d == "ByteFallback"),
        })
    }

    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<i32>, String> {
        let encoding =
            self.tokenizer.encode_fast(text, add_special_tokens).map_err(|e| e.to_string())?;
        // Fits: load() checked the largest id.
        Ok(encoding.get_ids().iter().map(|&id| id as i32).collect())
    }

    pub fn decode(&self, ids: &[i32], skip_special_tokens: bool) -> Result<String, String> {
        let known: Vec<u32> = ids.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
        self.tokenizer.decode(&known, skip_special_tokens).map_err(|e| e.to_string())
    }

    pub fn piece(&self, id: i32, skip_special_tokens: bool) -> Piece {
        let Some(token) = self.token_of(id) else { return Piece::Nothing };
        if skip_special_tokens && self.tokenizer.get_added_vocabulary().is_special_token(&token) {
            return Piece::Nothing;
        }
        if let Some(map) = &self.byte_of_char {
            // A token with any other character (an added token's text) stands for itself.
            let bytes: Option<Vec<u8>> = token.chars().map(|c| map.get(&c).copied()).collect();
            return Piece::Bytes(bytes.unwrap_or_else(|| token.into_bytes()));
        }
        if self.byte_fallback {
            if let Some(byte) = fallback_byte(&token) {
                return Piece::FallbackByte(byte);
            }
        }
        Piece::Text
    }

    pub fn id_of(&self, token: &str) -> i32 {
        self.tokenizer.token_to_id(token).map_or(-1, |id| id as i32)
    }

    pub fn token_of(&self, id: i32) -> Option<String> {
        self.tokenizer.id_to_token(u32::try_from(id).ok()?)
    }

    pub fn id_count(&self) -> i32 {
        self.id_count
    }
}

/// The types of a decoder and of all decoders inside it, sequences themselves left out.
fn decoder_types(decoder: &Json) -> Vec<String> {
    match decoder["type"].as_str() {
        None => Vec::new(),
        Some("Sequence") => decoder["decoders"]
            .as_array()
            .map_or(Vec::new(), |list| list.iter().flat_map(decoder_types).collect()),
        Some(name) => vec![name.to_string()],
    }
}

fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// The byte-level alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 onward
/// in order.
fn byte_of_char() -> HashMap<char, u8> {
    let mut next = 0x100;
    let mut map = HashMap::new();
    for byte in 0..=255u8 {
        let plain = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let code = if plain { u32::from(byte) } else { next };
        next += u32::from(!plain);
        map.insert(char::from_u32(code).expect("below the surrogates"), byte);
    }
    map
}
