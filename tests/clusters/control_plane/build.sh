#!/bin/sh
# Builds Kubernetes and etcd as one program, from the sources of their modules: build.sh TARGET.
# It takes Go 1.24 or later, and 20 minutes on 2 cores.
set -eu
target=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cd "$(dirname "$0")"
cp go.mod main.go "$folder"
cd "$folder"
version=$(sed -n 's|^\tk8s.io/kubernetes \(v.*\)|\1|p' go.mod)
minor=${version#v1.}
of=k8s.io/component-base/version
set -- -X "$of.gitVersion=$version" -X "$of.gitMajor=1" -X "$of.gitMinor=${minor%%.*}" -X "$of.gitTreeState=clean"
CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags "-s -w $*" -o "$target" .
