#!/bin/sh
# The first process of a host: host.sh NAME ETC DISK [FOLDER SOURCE]... -- [HIDDEN]...
# It mounts what the host sees, says so, and waits; when it ends, every process of the host does.
set -eu
name=$1 etc=$2 disk=$3
shift 3
hostname "$name"
mount -t tmpfs none /mnt
while [ "$1" != -- ]; do
  mkdir "/mnt/$1"
  mount --rbind "$2" "/mnt/$1"
  shift 2
done
shift
for file in hosts passwd; do mount --bind "$etc/$file" "/etc/$file"; done
for folder in "$@"; do
  # One of them may be in the other, and gone by now.
  if [ -d "$folder" ]; then mount --bind "$etc/nothing" "$folder"; fi
done
mount --bind "$disk" /tmp
for folder in /var/tmp /dev/shm; do mount -t tmpfs none "$folder"; done
echo ready
trap '' CHLD # what nobody waits for is no zombie then
exec sleep infinity
