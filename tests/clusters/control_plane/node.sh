#!/bin/sh
# Makes a host ready for a kubelet: node.sh ADDRESS. Pods are on the network of the hosts, by a bridge.
set -eu
for folder in /run /var/lib /var/log; do mount -t tmpfs none "$folder"; done
# What a kubelet sets is the whole machine's: it finds it set.
while read -r setting value; do
  echo "$value" >"/run/$(basename "$setting")"
  mount --bind "/run/$(basename "$setting")" "/proc/sys/$setting"
done <<END
vm/overcommit_memory 1
kernel/panic 10
kernel/panic_on_oops 1
END
ip link add pods type bridge
ip link set eth0 master pods
ip address del "$1/24" dev eth0
ip address add "$1/24" dev pods
ip link set pods up
mkdir -p /run/lock /var/log/pods /var/log/containers
