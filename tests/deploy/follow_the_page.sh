# What docs/how-to/run-under-systemd.md tells its reader to do, and what may be expected after it. In the room of room.sh.
#   follow_the_page.sh PAGE_FOLDER PYTHON     PAGE_FOLDER: the page's blocks as files, with free ports
set -euo pipefail
page=$1 python=$2
wait_for() { # wait_for TEXT COMMAND ...
  local text=$1 tries=300
  shift
  until "$@" 2>&1 | grep -q -- "$text"; do
    [ $((tries -= 1)) -gt 0 ] || { echo "'$*' never said '$text':" >&2; "$@" >&2 || true; tail -n 20 /run/*.log >&2; exit 1; }
    sleep 0.1
  done
}
mine() { # mine FOLDER USER: nothing in it may be another's, or readable by all
  find "$1" ! -user "$2" -o -perm -o=r ! -type l | sed "s/^/not the service's alone: /" | tee /dev/stderr | wc -l | grep -qx 0
}

systemd-sysusers "$PWD/deploy/weft.sysusers"
useradd --no-create-home anna
useradd --no-create-home bob
install -d -g weft-config -m 1771 /etc/weft
install -d -o weft-edge -g weft-edge -m 750 /var/lib/weft
install -d -o weft-hub -g weft-hub -m 750 /var/lib/weft-hub
mkdir -p /etc/systemd/system

install -o weft-hub -g weft-hub -m 640 "$page/hub.yaml" /etc/weft/
sudo -u weft-hub /opt/weft/bin/weft hub token add /etc/weft/hub.yaml press-shop-7 --scope edge --edge press-shop-7 >/run/token
sudo -u weft-hub /opt/weft/bin/weft hub check /etc/weft/hub.yaml
sed "s#^ExecStart=.*#&#" deploy/weft-hub.service >/etc/systemd/system/weft-hub.service
systemctl enable --now weft-hub
wait_for "the hub is ready" cat /run/weft-hub.log

install -o weft-edge -g weft-edge -m 640 "$page/edge.yaml" /etc/weft/
install -o weft-edge -g weft-edge -m 600 /dev/stdin /etc/weft/token </run/token
echo secret | sudo -u weft-edge /opt/weft/bin/weft user add gateway --file /etc/weft/users --password-file -
echo other | /opt/weft/bin/weft user add second --file /etc/weft/users --password-file -         # as root
sudo -u weft-edge /opt/weft/bin/weft edge check /etc/weft/edge.yaml
cp deploy/weft-edge.service /etc/systemd/system/
systemctl enable --now weft-edge
wait_for "connected" sudo -u weft-edge /opt/weft/bin/weft edge status /etc/weft/edge.yaml

"$python" "$page/publish.py"
wait_for "good: every record is in the log once, 1 of them" sudo -u weft-hub /opt/weft/bin/weft audit telemetry --store /var/lib/weft-hub
wait_for "21.5" sudo -u weft-edge /opt/weft/bin/weft edge tail /etc/weft/edge.yaml

# Root's own new user is taken up by the running node, which reads the file as weft-edge.
systemctl reload weft-edge
"$python" "$page/publish.py" second other

# Others read the store through the group, and cannot without it.
usermod -aG weft-hub anna
sudo -u anna /opt/weft/bin/weft audit telemetry --store /var/lib/weft-hub
if sudo -u bob /opt/weft/bin/weft audit telemetry --store /var/lib/weft-hub; then echo "bob could read" >&2; exit 1; fi
if sudo -u bob /opt/weft/bin/weft edge status /var/lib/weft; then echo "bob could read" >&2; exit 1; fi

# An intruder in one of the nodes reads nothing of the other.
for file in /etc/weft/hub.yaml /var/lib/weft-hub/cluster.json; do
  test -e "$file" && ! sudo -u weft-edge cat "$file" || { echo "the edge reads $file" >&2; exit 1; }
done
for file in /etc/weft/edge.yaml /etc/weft/users /etc/weft/token /var/lib/weft/log-id; do
  test -e "$file" && ! sudo -u weft-hub cat "$file" || { echo "the hub reads $file" >&2; exit 1; }
done
! sudo -u weft-hub mv -f /etc/weft/token /etc/weft/other || { echo "the hub takes a file of the edge away" >&2; exit 1; }

# Each command says whose a file is, and how to run it as that user; also of files in a folder that hides them.
refused() { # refused USER COMMAND ...
  local who=$1
  shift
  { ! sudo -u "$who" /opt/weft/bin/weft "$@" 2>&1; } >/run/said
  grep -q 'belongs to user weft-\(edge\|hub\).*Put `sudo -u weft-\1` before the command' /run/said ||
    { echo "'$*' of $who did not say whose it is:" >&2; cat /run/said >&2; exit 1; }
}
for words in "edge status" "edge tail" "edge query" "log dump" "log drop"; do
  more=()
  case "$words" in *query) more=("SELECT 1") ;; *drop) more=(telemetry --all --yes) ;; esac
  refused bob $words /var/lib/weft "${more[@]}"
  refused bob $words /etc/weft/edge.yaml "${more[@]}"
done
for words in "edge check" "edge run" "edge rename"; do refused bob $words /etc/weft/edge.yaml; done
for words in "hub check" "hub run" "hub status"; do refused bob $words /etc/weft/hub.yaml; done
refused bob hub token list /etc/weft/hub.yaml
refused bob user list --file /etc/weft/users
refused anna user list --file /etc/weft/users
refused anna user add third --file /etc/weft/users --password-file - <<<other
refused anna hub status /etc/weft/hub.yaml --token-file /etc/weft/token
refused anna edge check /etc/weft/edge.yaml
refused anna hub check /etc/weft/hub.yaml
refused bob audit telemetry --store /var/lib/weft-hub

systemctl stop weft-edge
systemctl stop weft-hub
! grep -i -e traceback -e denied /run/*.log
mine /var/lib/weft weft-edge
mine /var/lib/weft-hub weft-hub
test "$(stat -c '%U %a' /etc/weft/users)" = "weft-edge 600"
echo "followed to its end"
