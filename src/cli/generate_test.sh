#!/usr/bin/env bash
# `tandem generate` from outside: the fields of its lines, one text in every layout, arrival steps, traces and refusals.
# Usage: generate_test.sh TANDEM MODEL
set -euo pipefail
tandem=$1 model=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "FAILED: $*"; exit 1; }
# expect NAME GOT WANTED
expect() { [ "$2" = "$3" ] || fail "$1: got '$2', wanted '$3'"; }

cat >"$work/in.jsonl" <<'JSON'
{"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "logprobs": 2}
{"messages": [{"role": "user", "content": "What is the capital of Norway?"}], "temperature": 0, "arrival_step": 3}
{"prompt_token_ids": [0, 587, 399], "max_tokens": 5, "temperature": 0.8, "seed": 7, "prompt_logprobs": 0}
JSON
"$tandem" generate "$model" --input "$work/in.jsonl" --json >"$work/plain" 2>"$work/log"
"$tandem" generate "$model" --input "$work/in.jsonl" --json -tp 4 --enable-dp-attention --dp-size 2 \
  --method mtp --num-speculative-tokens 3 --trace-rows "$work/rows" >"$work/layout" 2>>"$work/log"

names='index,token_ids,text,finish_reason,logprobs,seed,prompt_tokens,steps,verify_steps,drafted,accepted,accept_length,accepted_per_position'
expect "fields" "$(head -1 "$work/layout" | jq -r 'keys_unsorted | join(",")')" "$names"
expect "order" "$(jq -c .index "$work/layout" | paste -sd' ')" "0 1 2"
text='[.token_ids, .text, .finish_reason, .logprobs, .prompt_logprobs, .prompt_tokens]'
expect "one text" "$(jq -c "$text" "$work/layout")" "$(jq -c "$text" "$work/plain")"
expect "answer" "$(sed -n 2p "$work/layout" | jq -r .text)" "The capital of Norway is Oslo."
expect "log-probabilities" "$(head -1 "$work/layout" | jq '.logprobs | length')" 20
expect "their alternatives" "$(head -1 "$work/layout" | jq '.logprobs[0].top | length')" 2
expect "prompt log-probabilities" "$(sed -n 3p "$work/layout" | jq '.prompt_logprobs | length')" 2
expect "a given seed" "$(sed -n 3p "$work/layout" | jq .seed)" 7
expect "no drafts" "$(jq -s 'map(.drafted) | add' "$work/plain")" 0
[ "$(sed -n 2p "$work/layout" | jq '.accept_length > 2')" = true ] || fail "nothing was accepted"
expect "columns of a trace" "$(awk '{print NF}' "$work/rows" | sort -u)" 7
grep -q ' attn_residual 2 0 ' "$work/rows" || fail "no rows of layer 2 in the trace"

echo '{"prompt": 5}' >>"$work/in.jsonl"
code=0
"$tandem" generate "$model" --input "$work/in.jsonl" --json >"$work/bad" 2>"$work/log" || code=$?
expect "exit code of a bad line" $code 2
expect "output of a bad line" "$(cat "$work/bad")" ""
grep -q '4' "$work/log" || fail "the bad line's number is not named"
echo "1 passed, 0 failed"
