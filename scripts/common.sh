# Shell pieces of ./run and ./test: what is installed and how the project is built. Sourced, not run.
# REQUIRES: bash with set -euo pipefail; $root is the project's folder.

# Everything that building, ./run and ./test need from Debian; Rust is apart, see install_rust.
packages=(
  g++ cmake ninja-build ca-certificates
  libboost1.81-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libcli11-dev libgtest-dev
  libsimde-dev  # tests run the AVX-512 kernels without AVX-512
  clang-14 libclang-rt-14-dev  # ./test fuzzes with them
  curl jq  # the first request of ./run and the end-to-end test
)

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# As root, whoever we are.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  else
    sudo "$@"
  fi
}

apt_install() {
  say "installing $*"
  as_root apt-get update >&2
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >&2
}

# Installs those of the given packages that are missing; asks nobody and no server when none is.
install_packages() {
  local missing=() package
  for package in "$@"; do
    is_installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
}

# Whether there is a cargo of 1.87 or newer, which the locked crates need: the one on PATH, or Debian's.
has_cargo() {
  local cargo
  for cargo in cargo /usr/bin/cargo; do
    [[ $("$cargo" --version 2>/dev/null) =~ ^cargo\ ([0-9]+)\.([0-9]+) ]] || continue
    ((BASH_REMATCH[1] > 1 || BASH_REMATCH[2] >= 87)) && return 0
  done
  return 1
}

install_rust() {
  has_cargo || apt_install rustc-web cargo-web  # an older one is upgraded
  has_cargo || { say "cargo 1.87 or newer is needed; found: $(cargo --version 2>&1)"; return 1; }
}

install_all() {
  install_packages "${packages[@]}"
  install_rust
}

# build_tree FOLDER "CMAKE OPTIONS" [TARGET...]: configures once, then builds what has changed.
build_tree() {
  local folder=$root/$1 options=$2
  shift 2
  if [ ! -f "$folder/build.ninja" ]; then
    # shellcheck disable=SC2086  # options are words
    cmake -S "$root" -B "$folder" -G Ninja $options >&2
  fi
  ninja -C "$folder" "$@" >&2
}
