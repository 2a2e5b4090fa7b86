#!/bin/sh
# build/gpu-bundle: what is carried to a machine with a GPU, which then builds and installs nothing. The
# program is linked with the C library alone. Where build/gpu is configured with REGARD_PYTHON, the
# module for that Python goes to build/gpu-bundle-python.
#
# usage: gpu_bundle.sh    after ./dev build gpu
set -eu
cd "$(dirname "$0")/.."
bundle=build/gpu-bundle
max_mb=48
max_glibc=2.35  # of Ubuntu 22.04

rm -rf "$bundle"
mkdir -p "$bundle"
cp build/gpu/tools/gpu_check/regard_gpu_check build/gpu/tools/gpu_check/*.py scripts/gpu_check.sh "$bundle/"
strip "$bundle/regard_gpu_check"
if [ -d build/cudnn-frontend/include ]; then
  mkdir "$bundle/cudnn-frontend"
  cp -R build/cudnn-frontend/include "$bundle/cudnn-frontend/"
fi
cat >"$bundle/README" <<'EOF'
Checks regard on a CUDA device (an x86-64 Linux with the driver; ten minutes):

    sh gpu_check.sh              results in gpu_check.jsonl, the report in gpu_check.md
    sh gpu_check.sh              once more: goes on where the first was cut off
    sh gpu_check.sh -- --list    phases and cases; --only phase=speed runs one, --help has the rest
    sh gpu_check.sh -- --rehearse --cases 20    every phase without a device

Nothing is built or installed. Phases that need PyTorch (python3), compute-sanitizer or ncu say "not
present" where these are not there. The phase python also needs the folder python-3.X of
build/gpu-bundle-python in this one, or an installed regard with CUDA. cudnn-frontend has the headers
for a build of the sources.
EOF
glibc=$(objdump -T "$bundle/regard_gpu_check" | grep -o 'GLIBC_2[0-9.]*' | sed 's/GLIBC_//' | sort -V | tail -n 1)
[ "$(printf '%s\n' "$glibc" "$max_glibc" | sort -V | tail -n 1)" = "$max_glibc" ] || {
  echo "gpu_bundle: regard_gpu_check needs glibc $glibc, which must be at most $max_glibc" >&2
  exit 1
}
# check_size FOLDER: both are small enough to be carried quickly.
check_size() {
  mb=$(du -sm --apparent-size "$1" | cut -f1)
  echo "$1: $mb MB"
  [ "$mb" -lt "$max_mb" ] || { echo "gpu_bundle: $1 ($mb MB) must be below $max_mb MB" >&2; exit 1; }
}
check_size "$bundle"

grep -q '^REGARD_PYTHON:BOOL=ON' build/gpu/CMakeCache.txt || exit 0
cmake --build build/gpu --target _core -j "${REGARD_DEV_JOBS:-1}"
rm -rf "$bundle-python"
for module in build/gpu/python/regard/_core.*.so; do
  version=$(basename "$module" | sed 's/.*cpython-3\([0-9]*\).*/3.\1/')
  mkdir -p "$bundle-python/python-$version"
  cp -RL build/gpu/python/regard "$bundle-python/python-$version/"
  rm -rf "$bundle-python/python-$version/regard/docs"
  strip "$bundle-python/python-$version/regard/"_core.*.so
done
check_size "$bundle-python"
