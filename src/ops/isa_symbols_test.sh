#!/usr/bin/env bash
# isa_symbols_test.sh ISA NM OBJECT...: fails, naming it, if an object defines a symbol that other objects see outside of
# namespace tandem::ISA, or runs code at start-up: either could be executed on a machine without the instruction set.
set -euo pipefail
isa=$1 nm=$2
shift 2
symbols=$("$nm" -C --defined-only "$@")
[ "$(grep -c " tandem::$isa::kKernels$" <<<"$symbols")" = 1 ]  # these are the objects we mean
# Capital letters, v, w and u are visible outside of an object. No code: C, zeroed data (std::ranges' empty objects), and
# DW.ref, a pointer for exceptions.
leaks=$(grep -E '^[0-9a-f]+ ([ABD-Zuvw] |. _GLOBAL__sub_I)' <<<"$symbols" |
  grep -vE " [A-Z] tandem::$isa::[^ ]+($|\()| V DW\.ref\.__gxx_personality_v0$" || true)
[ -z "$leaks" ] || { printf 'visible outside of tandem::%s:\n%s\n' "$isa" "$leaks"; exit 1; }
