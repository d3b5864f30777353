#!/usr/bin/env bash
# `tandem inspect` from outside, and loading without files: parameters, bytes, what fits, what is absent.
# Usage: inspect_test.sh TANDEM MODEL
set -euo pipefail
tandem=$1 model=$2
project=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "FAILED: $*"; exit 1; }
# expect NAME GOT WANTED
expect() { [ "$2" = "$3" ] || fail "$1: got '$2', wanted '$3'"; }
# refused NAME WORDS COMMAND...: exit code 1, and WORDS on standard error.
refused() {
  local name=$1 words=$2 code=0
  shift 2
  "$@" >"$work/out" 2>"$work/err" || code=$?
  expect "exit code, $name" $code 1
  grep -q -- "$words" "$work/err" || fail "$name: no '$words' in: $(tail -3 "$work/err")"
}

"$tandem" inspect "$project/configs/deepseek-v3" -tp 8 --enable-dp-attention --json >"$work/v3" 2>/dev/null
expect "V3's parameters in billions" "$(jq '.parameters | [.total, .active] | map(. / 1e9 | floor) | join(" ")' -r "$work/v3")" "671 37"
expect "V3 without its module" "$(jq -c '[.parameters.mtp_total, .mtp]' "$work/v3")" '[0,"left out"]'
expect "V3 on this machine" "$(jq .memory.fits "$work/v3")" false
expect "V3's KV bytes" "$(jq .kv.bytes_per_token "$work/v3")" 70272
sums=$(jq '.bytes.total == ([.bytes.groups[]] | add) and .bytes.total == ([.bytes.formats[]] | add)
  and .bytes.total == ([.ranks[].weights] | add) + .shared_bytes.weights' "$work/v3")
expect "sums of groups, formats and ranks" "$sums" true

"$tandem" inspect "$model" --num-speculative-tokens 2 --kv-cache-dtype fp8 --json >"$work/tiny"
expect "FP8 slots" "$(jq -c '[.kv.bytes_per_token, .kv.draft_bytes_per_token]' "$work/tiny")" "[820,164]"
expect "fits" "$(jq -c '[.memory.fits, .kv.tokens_per_pool > 1000, .mtp]' "$work/tiny")" '[true,true,"counted"]'
"$tandem" inspect "$model" >"$work/text"
grep -q '^parameters .* active' "$work/text" || fail "no parameters in the text"
refused "no model" "config.json" "$tandem" inspect "$work"

# A module that is announced and absent: a note without speculation, an error with it.
absent=$project/models/v3-no-q-lora
"$tandem" inspect "$absent" | grep -q '^note .*no speculation' || fail "no note on the absent module"
refused "speculation without a module" "MTP" "$tandem" inspect "$absent" --num-speculative-tokens 1

# From config.json alone.
mkdir "$work/bare"
cp "$model/config.json" "$work/bare"
refused "no tokenizer" "tokenizer.json" "$tandem" generate "$work/bare" --prompt x
"$tandem" generate "$work/bare" --load-format dummy --dummy-acceptance 1 --num-speculative-tokens 3 --prompt hello \
  --temperature 0 --max-tokens 40 --ignore-eos --json >"$work/made" 2>"$work/log"
expect "all drafts right" "$(jq -c '[.accepted == .drafted, .drafted > 20, .prompt_tokens]' "$work/made")" "[true,true,5]"
refused "too much" "the machine has" "$tandem" generate "$project/configs/deepseek-v3" --load-format dummy --prompt x
echo "inspect: all as expected"
