# Runs COMMAND in a private mount namespace in which the folders of an installation are empty and may be filled.
#   room.sh ROOM REPOSITORY PYTHON COMMAND ...
# Needs root. The namespace, and with it every mount, ends with the command; the machine's own folders stay as they are.
set -euo pipefail
room=$1 repository=$2 python=$3
shift 3
mkdir "$room/etc" "$room/keep"
cp -a /etc/. "$room/etc"
mount --bind "$room/etc" /etc
for folder in /var/lib /run /opt; do mount -t tmpfs -o mode=755 tmpfs "$folder"; done

# The service's user must reach the interpreter, which may stand in a home folder that is closed to others.
open_up() {
  local path=$1 closed child
  while closed=$(closed_folder "$path") && [ -n "$closed" ]; do
    child=${path#"$closed"/}; child=${child%%/*}
    mkdir -p "$room/keep$closed/$child"
    mount --rbind "$closed/$child" "$room/keep$closed/$child"
    mount -t tmpfs -o mode=755 tmpfs "$closed"
    mkdir "$closed/$child"
    mount --rbind "$room/keep$closed/$child" "$closed/$child"
  done
}
closed_folder() { # the topmost folder on the way to a path that others may not enter
  local part= word
  while IFS= read -r word; do
    [ -n "$word" ] || continue
    part=$part/$word
    [ -L "$part" ] && continue
    [ "$(($(stat -c %a "$part") % 2))" = 1 ] || { [ -d "$part" ] && echo "$part"; return; }
  done < <(echo "$1" | tr / '\n')
}
open_up "$("$python" -c 'import sys; print(sys.base_prefix)')"
open_up "$repository"

# What `pip install` would make. tests/end_to_end and `./run build` install for real.
mkdir -p /opt/weft/bin
printf '#!/bin/sh\nPYTHONPATH=%s exec %s -m weft "$@"\n' "$repository" "$python" >/opt/weft/bin/weft
chmod 755 /opt/weft/bin/weft
exec "$@"
