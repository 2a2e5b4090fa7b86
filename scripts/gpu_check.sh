#!/bin/sh
# What a CUDA device says of this library: conformance, speeds, sanitizers, in phases whose results
# outlive a run that is cut off; run it again and it goes on. It uses the program beside it (the folder
# of ./dev gpu-bundle) or one that is built, and builds one where there is none that starts.
#
# usage: gpu_check.sh [-b BUILD] [-o PREFIX] [-t SECONDS] [-- OPTION...]
#   -b BUILD    folder with a regard_gpu_check, or to build one in (build/gpu)
#   -o PREFIX   results in PREFIX.jsonl, the report in PREFIX.md (gpu_check; build/gpu_check in a checkout)
#   -t SECONDS  for everything, a build included (560)
#   OPTION      for the program: --only phase=speed, --rehearse, --list, ... (--help prints them)
#
# Exit status: 0 no case failed, 1 a case failed, 2 wrong use, 3 no device, 4 no program, or results
# that cannot be read or written.
set -eu
folder=$(cd "$(dirname "$0")" && pwd)
source=$(dirname "$folder")
[ -f "$source/CMakePresets.json" ] || source=

build=${source:+$source/build/gpu}
prefix=${source:+$source/build/}gpu_check
seconds=560
while getopts b:o:t: option; do
  case $option in
    b) build=$OPTARG ;;
    o) prefix=$OPTARG ;;
    t) seconds=$OPTARG ;;
    *) sed -n '6,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
case $seconds in
  '' | *[!0-9]*) echo "gpu_check: -t ($seconds) must be a number of seconds" >&2; exit 2 ;;
esac
start=$(date +%s)
left() { echo $((seconds - $(date +%s) + start)); }
mkdir -p "$(dirname "$prefix")"
log=$prefix.log
: >>"$log"

# PyTorch's wheels bring cuDNN, cuBLAS and CUDA's runtime in folders that no loader looks at; a machine
# may have them there alone. The toolkit's own come first.
wheels=$(python3 -c 'import glob, nvidia
print(*(d for f in nvidia.__path__ for d in glob.glob(f + "/*/lib")), sep=":")' 2>>"$log") || wheels=
headers=$(python3 -c 'import nvidia.cudnn as c; print(c.__path__[0] + "/include")' 2>>"$log") || headers=

# starts PROGRAM: it may be missing, or linked for a newer C library.
starts() { [ -x "$1" ] && "$1" --help >/dev/null 2>>"$log"; }

# build_program: for the devices that are there, and no PTX. The results need a third of the time.
build_program() {
  command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
  [ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || nvidia-smi -L >>"$log" 2>&1 || {
    echo "gpu_check: no CUDA device is here, and no regard_gpu_check that starts" >&2
    exit 3
  }
  limit=$(($(left) * 2 / 3))
  cudnn=$folder/cudnn-frontend
  if [ ! -d "$cudnn" ]; then
    cudnn=$source/build/cudnn-frontend
    # Without the network pip would try for minutes.
    [ -d "$cudnn/include" ] || (cd "$source" && timeout 60 ./dev cuda-headers) >>"$log" 2>&1 || :
  fi
  generator=
  command -v ninja >/dev/null && generator='-G Ninja'
  [ -f "$(dirname "$(command -v nvcc)")/../include/cudnn.h" ] || export CMAKE_INCLUDE_PATH="$headers"
  # shellcheck disable=SC2086  # two words or none
  timeout "$limit" cmake $generator -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=Release \
    -DREGARD_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native -DCMAKE_PREFIX_PATH="$cudnn" \
    -DREGARD_BUILD_TESTS=OFF -DREGARD_BUILD_BENCH=OFF -DREGARD_BUILD_CLI=OFF \
    -DREGARD_BUILD_EXAMPLES=OFF >>"$log" 2>&1 &&
    timeout "$limit" cmake --build "$build" --target regard_gpu_check -j "$(nproc)" >>"$log" 2>&1
}

program=$folder/regard_gpu_check
starts "$program" || program=$build/tools/gpu_check/regard_gpu_check
starts "$program" || {
  [ -n "$source" ] || {
    echo "gpu_check: $folder/regard_gpu_check does not start, and no checkout is here to build one;" \
      "$log says why" >&2
    exit 4
  }
  build_program || {
    tail -n 40 "$log" >&2
    echo "gpu_check: regard_gpu_check is not built; $log has the rest" >&2
    exit 4
  }
}

# What else says which machine this was, beside what the program reads itself.
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit \
    --format=csv >"$prefix.smi.csv" 2>>"$log" || rm -f "$prefix.smi.csv"
fi

# A loader's own path comes before its cache: a second cuDNN beside the toolkit's would be met first.
ldconfig -p 2>/dev/null | grep -q 'libcudnn\.so\.9 ' ||
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$wheels"
# The module of build/gpu-bundle-python, where it was carried along for this Python.
module=$folder/python-$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>>"$log") || :
[ ! -d "$module" ] || export PYTHONPATH="$module${PYTHONPATH:+:$PYTHONPATH}"

# The program keeps time itself; the limit is for a driver that hangs.
rest=$(($(left) - 5))
[ "$rest" -gt 1 ] || { echo "gpu_check: no time left after the build" >&2; exit 4; }
status=0
timeout -k 5 "$((rest + 4))" "$program" --seconds "$rest" --out "$prefix" "$@" >>"$log" 2>&1 ||
  status=$?
case $status in
  0 | 1) [ ! -f "$prefix.md" ] || cat "$prefix.md" ;;
  2 | 3 | 4) grep '^\[gpu_check\]' "$log" | tail -n 1 >&2 ;;
  *)
    echo "gpu_check: ended with status $status; run it again to go on. $log ends with" >&2
    tail -n 1 "$log" >&2
    status=1
    ;;
esac
exit "$status"
