#!/bin/sh
# Writes the digest of an image, or of the index of images that it is, into both Containerfiles as their BASE. Called by
# `make lock-base`, in the root of the repository: deploy/base.sh REFERENCE, as skopeo(1) names images.
set -eu
manifest=$(mktemp)
trap 'rm "$manifest"' EXIT
skopeo inspect --raw "$1" >"$manifest"
base=debian@sha256:$(sha256sum <"$manifest" | cut -d' ' -f1)
sed -i "s|^ARG BASE=.*|ARG BASE=$base|" deploy/*/Containerfile
echo "$base"
