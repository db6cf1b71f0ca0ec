# Sourced by the scripts beside it: makes sure that the program can be built here.
# need_cargo leaves a cargo of at least 1.91 and a C compiler in PATH, or says what to do and fails.

new_enough() { # new_enough VERSION
  local major minor
  IFS=. read -r major minor _ <<<"$1"
  [ "${major:-0}" -gt 1 ] || { [ "${major:-0}" -eq 1 ] && [ "${minor:-0}" -ge 91 ]; }
} 2>/dev/null

cargo_is_new_enough() { new_enough "$(cargo --version 2>/dev/null | cut -d' ' -f2)"; }

install_packages() { # install_packages NAME...
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null && sudo -n true 2>/dev/null || return 1
    as_root=(sudo -n)
  fi
  command -v apt-get >/dev/null || return 1
  echo "installing with apt-get: $*" >&2
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get update -qq >&2 &&
    DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@" >&2
}

need_cargo() {
  [ -f "$HOME/.cargo/env" ] && . "$HOME/.cargo/env"
  if ! command -v cc >/dev/null; then
    install_packages gcc libc6-dev || {
      echo "a C compiler is needed to build: install gcc and libc6-dev (or what your system calls them)" >&2
      return 1
    }
  fi
  cargo_is_new_enough && return 0
  # Some distributions' own Rust is new enough.
  if ! command -v cargo >/dev/null && new_enough "$(apt-cache policy cargo 2>/dev/null | sed -n 's/ *Candidate: //p')"; then
    install_packages cargo && cargo_is_new_enough && return 0
  fi
  {
    echo "Rust 1.91 or newer is needed to build, and this machine has $(cargo --version 2>/dev/null || echo none)."
    echo "Get it from https://rustup.rs, with \`apt-get install rustup && rustup default stable\` (Debian 13 and newer), or"
    echo "with \`rustup update stable\` where rustup is there already. Then run this again."
  } >&2
  return 1
}
