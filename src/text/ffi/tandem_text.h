// The C interface of the Rust crate beside it (tokenizers, minijinja). Only src/text includes it;
// it is neither stable nor a public interface.
//
// Strings are (pointer, size) in bytes and need no NUL. Results come through sinks: a sink is
// called at most once, before the function returns, with memory that it must copy, and must not
// throw. A function that fails calls `error` with one line and nothing else. Handles may be used by
// several threads at once; loading and freeing them may not overlap with their use. No panic leaves
// the library.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TandemTokenizer TandemTokenizer;
typedef struct TandemTemplate TandemTemplate;
typedef void (*TandemTextSink)(void* to, const char* data, size_t size);
typedef void (*TandemIdSink)(void* to, const int32_t* ids, size_t count);

// From the contents of a tokenizer.json. Null on failure.
TandemTokenizer* tandem_tokenizer_load(const char* json, size_t size, TandemTextSink error,
                                       void* error_to);
void tandem_tokenizer_free(TandemTokenizer* tokenizer);

// Special tokens inside the text are recognised. `add_special_tokens`: run the file's
// post-processor. Text that is not UTF-8 is an error. 0 = success.
int tandem_tokenizer_encode(const TandemTokenizer* tokenizer, const char* text, size_t size,
                            int add_special_tokens, TandemIdSink ids, void* ids_to,
                            TandemTextSink error, void* error_to);

// Ids that are no tokens are left out. 0 = success.
int tandem_tokenizer_decode(const TandemTokenizer* tokenizer, const int32_t* ids, size_t count,
                            int skip_special_tokens, TandemTextSink text, void* text_to,
                            TandemTextSink error, void* error_to);

// What `id` is to the decoder.
enum TandemPiece {
  kTandemPieceNothing = 0,       // no token, or special and skipped; `bytes` is not called
  kTandemPieceBytes = 1,         // byte-level decoder: adds exactly these bytes
  kTandemPieceFallbackByte = 2,  // one byte of a run that is decoded as a whole
  kTandemPieceText = 3,          // text that may depend on the token before; `bytes` is not called
};
int tandem_tokenizer_piece(const TandemTokenizer* tokenizer, int32_t id, int skip_special_tokens,
                           TandemTextSink bytes, void* bytes_to);

// -1 if `token` is no token's exact text.
int32_t tandem_tokenizer_id_of(const TandemTokenizer* tokenizer, const char* token, size_t size);
// The token as the vocabulary spells it. 0 = success; otherwise `id` is no token.
int tandem_tokenizer_token_of(const TandemTokenizer* tokenizer, int32_t id, TandemTextSink token,
                              void* token_to);
// Largest id + 1, added tokens included.
int32_t tandem_tokenizer_id_count(const TandemTokenizer* tokenizer);

// `globals`: a JSON object of variables (bos_token and so on). Null on failure.
TandemTemplate* tandem_template_compile(const char* source, size_t source_size, const char* globals,
                                        size_t globals_size, TandemTextSink error, void* error_to);
void tandem_template_free(TandemTemplate* chat_template);

// `messages`: a JSON array. `tools`: a JSON array, or empty. `arguments`: a JSON object of more
// variables, which win over the globals, or empty. Fails when the template raises an exception, or
// exceeds its limits of instructions, recursion or output. 0 = success.
int tandem_template_render(const TandemTemplate* chat_template, const char* messages,
                           size_t messages_size, const char* tools, size_t tools_size,
                           const char* arguments, size_t arguments_size, int add_generation_prompt,
                           TandemTextSink text, void* text_to, TandemTextSink error,
                           void* error_to);

#ifdef __cplusplus
}
#endif
