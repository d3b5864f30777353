#!/usr/bin/env bash
# The whole program from outside: serves the bundled model with MTP on two DP-attention ranks, asks it over HTTP,
# and compares plain and streamed answers. Usage: serve_test.sh TANDEM MODEL
set -euo pipefail
tandem=$1 model=$2
work=$(mktemp -d)
server=

finish() {
  local code=$?
  if [ -n "$server" ]; then kill -TERM "$server" 2>/dev/null || true; wait "$server" || true; fi
  [ $code = 0 ] || { echo "--- the server's log:"; cat "$work/log"; }
  rm -rf "$work"
  exit $code
}
trap finish EXIT

fail() { echo "FAILED: $*"; exit 1; }

# expect NAME GOT WANTED
expect() { [ "$2" = "$3" ] || fail "$1: got '$2', wanted '$3'"; }

"$tandem" serve "$model" -tp 2 --enable-dp-attention --enable-expert-parallel --method mtp \
  --num-speculative-tokens 3 --port 0 2>"$work/log" &
server=$!
# The server names its port before it loads; 2,400 tries are two minutes.
url=
for ((i = 0; i < 2400; i++)); do
  kill -0 $server 2>/dev/null || fail "the server ended"
  port=$(sed -n 's/.*listening on .* port \([0-9]*\);.*/\1/p' "$work/log")
  if [ -n "$port" ] && curl -sf -o /dev/null "http://127.0.0.1:$port/health"; then
    url=http://127.0.0.1:$port
    break
  fi
  sleep 0.05
done
[ -n "$url" ] || fail "the server was not ready in time"

post() { curl -sS --max-time 60 -H 'Content-Type: application/json' -d "$2" "$url$1"; }

messages='"messages":[{"role":"user","content":"What is the capital of Norway?"}],"temperature":0,"max_tokens":32'
plain=$(post /v1/chat/completions "{$messages}")
text=$(jq -r '.choices[0].message.content' <<<"$plain")
[[ $text == *Oslo* ]] || fail "no Oslo in: $plain"
expect finish_reason "$(jq -r '.choices[0].finish_reason' <<<"$plain")" stop
jq -e '.usage.speculation | .drafted > 0 and .accepted > 0 and .accept_length > 1' <<<"$plain" \
  >/dev/null || fail "no speculation in: $plain"
jq -e '.usage | .total_tokens == .prompt_tokens + .completion_tokens' <<<"$plain" >/dev/null ||
  fail "usage: $plain"

post /v1/chat/completions "{$messages,\"stream\":true}" | sed -n 's/^data: //p' >"$work/stream"
expect "end of stream" "$(tail -n 1 "$work/stream")" "[DONE]"
streamed=$(sed '$d' "$work/stream" | jq -rj '.choices[0].delta.content // ""')
expect "streamed text" "$streamed" "$text"

# The same request on the other replica, and with its seed at another temperature: equal every time.
other=$(post /v1/chat/completions "{$messages,\"data_parallel_rank\":1}")
expect "replica 1" "$(jq -r '.choices[0].message.content' <<<"$other")" "$text"
sampled='{"prompt":"Once upon a time","max_tokens":24,"temperature":0.8,"seed":5}'
expect "sampled text" "$(post /v1/completions "$sampled" | jq -c '.choices[0].text')" \
  "$(post /v1/completions "$sampled" | jq -c '.choices[0].text')"

expect "bad JSON" "$(post /v1/completions '{' | jq -r '.error.type')" invalid_request_error
expect "models" "$(curl -sS "$url/v1/models" | jq -r '.data[0].id')" "$(basename "$model")"

kill -TERM $server
wait $server || fail "the server ended with code $?"
server=
echo "answer: $text"
