#!/usr/bin/env bash
# Installs the program for the user who runs this: ~/.local/bin/chappie and a systemd user unit that starts it.
# Twice is the same as once. Run as root it only adds the packages a build needs; it never installs for other users.
#
#   deploy/install.sh                  build from this tree and install
#   deploy/install.sh --binary FILE    install FILE, built elsewhere
#   deploy/install.sh --no-start       install, and leave starting to the user
#   deploy/install.sh --uninstall      take it away again; the node's home folder stays
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$HOME/.local/bin/chappie
unit=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user/chappie.service
doc=$HOME/.local/share/doc/chappie
binary= start=yes action=install

while [ $# -gt 0 ]; do
  case $1 in
    --binary)
      [ $# -ge 2 ] || { echo "install.sh: --binary needs a file" >&2; exit 2; }
      binary=$2
      shift
      ;;
    --no-start) start=no ;;
    --uninstall) action=uninstall ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "install.sh: unknown option $1; see --help" >&2; exit 2 ;;
  esac
  shift
done

has_user_manager() { command -v systemctl >/dev/null && systemctl --user show-environment >/dev/null 2>&1; }

uninstall() {
  has_user_manager && systemctl --user disable --now chappie.service 2>/dev/null
  rm -f "$bin" "$unit"
  rm -rf "$doc"
  has_user_manager && systemctl --user daemon-reload
  local home=${CHAPPIE_HOME:-${XDG_STATE_HOME:-$HOME/.local/state}/chappie}
  echo "removed"
  [ ! -d "$home" ] || echo "the node's home folder ($home) is still there"
}

build() {
  . "$here/cargo.sh"
  need_cargo
  cargo build --release --locked --package chappie --manifest-path "$here/../Cargo.toml"
  binary=$(cargo metadata --format-version 1 --no-deps --manifest-path "$here/../Cargo.toml" |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/chappie
}

put() { # put MODE FROM TO: whole or not at all, also over a program that runs
  mkdir -p "$(dirname "$3")"
  install -m "$1" "$2" "$3.new"
  mv -f "$3.new" "$3"
}

install_all() {
  [ -n "$binary" ] || build
  "$binary" --version >/dev/null || { echo "install.sh: $binary does not run on this machine" >&2; exit 1; }
  put 755 "$binary" "$bin"
  put 644 "$here/chappie.service" "$unit"
  for page in OPERATING SECURITY; do put 644 "$here/../docs/$page.md" "$doc/$page.md"; done
  echo "installed $("$bin" --version) as $bin"
  case :$PATH: in
    *:"$HOME/.local/bin":*) ;;
    *) echo "add it to your PATH: export PATH=\"\$HOME/.local/bin:\$PATH\"" ;;
  esac
  if ! has_user_manager; then
    echo "no systemd user manager here: start the node yourself with \`chappie up\`"
    return 0
  fi
  systemctl --user daemon-reload
  systemctl --user enable chappie.service
  if [ "$start" = yes ]; then
    systemctl --user restart chappie.service
    echo "started; see \`chappie status\` and \`journalctl --user -u chappie\`"
  fi
  if [ "$(loginctl show-user "$(id -un)" --property=Linger --value 2>/dev/null)" = no ]; then
    echo "to keep it running when you are logged out: loginctl enable-linger"
  fi
}

if [ "$action" = uninstall ]; then uninstall; else install_all; fi
