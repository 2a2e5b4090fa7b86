#!/bin/sh
# Conformance on a CUDA device for each backend, then a table of speeds beside the device's own rates.
# One command, for a machine that has a toolkit and nothing built; a build that is there is used.
#
# usage: scripts/gpu_check.sh [-b BUILD] [-o PREFIX] [-t SECONDS]
#   -b BUILD    folder to build in, or with a regard_gpu_check that is built (build/gpu)
#   -o PREFIX   writes PREFIX.json and PREFIX.md (build/gpu_check)
#   -t SECONDS  for everything, the build included; then it stops and keeps what it has (460)
#
# Exit status: 0 all cases passed, 1 a case failed, 2 wrong use, 3 no device, 4 it did not build. Without
# the network, build/cudnn-frontend/include must be there (./dev cuda-headers brings it, and is called
# here), or CUDNN is left out.
set -eu
cd "$(dirname "$0")/.."

build=build/gpu
prefix=build/gpu_check
seconds=460
while getopts b:o:t: option; do
  case $option in
    b) build=$OPTARG ;;
    o) prefix=$OPTARG ;;
    t) seconds=$OPTARG ;;
    *) sed -n '5,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
case $seconds in
  '' | *[!0-9]*) echo "gpu_check: -t ($seconds) must be a number of seconds" >&2; exit 2 ;;
esac
start=$(date +%s)
left() { echo $((seconds - $(date +%s) + start)); }

program=$build/tools/gpu_check/regard_gpu_check
mkdir -p "$(dirname "$prefix")" build
log=$prefix.log
: >"$log"

# PyTorch's wheels bring cuDNN, cuBLAS and CUDA's runtime in folders that no loader looks at; a machine
# may have them there alone. The toolkit's own come first.
wheels=$(python3 -c 'import glob, nvidia
print(*(d for f in nvidia.__path__ for d in glob.glob(f + "/*/lib")), sep=":")' 2>>"$log") || wheels=
headers=$(python3 -c 'import nvidia.cudnn as c; print(c.__path__[0] + "/include")' 2>>"$log") || headers=

# The devices that are there, and no PTX: what is compiled for others is time lost here. The results
# need a third of the time at least.
if [ ! -x "$program" ]; then
  command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
  [ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || nvidia-smi -L >>"$log" 2>&1 || {
    echo "gpu_check: no CUDA device is here, and nothing is built" >&2
    exit 3
  }
  # What was brought along may lack pip's own files. Without the network pip would try for minutes.
  [ -f build/cudnn-frontend/include/cudnn_frontend.h ] ||
    timeout 60 ./dev cuda-headers >>"$log" 2>&1 || :
  generator=
  command -v ninja >/dev/null && generator='-G Ninja'
  limit=$(($(left) * 2 / 3))
  jobs=$(nproc 2>/dev/null || echo 2)
  [ -f "$(dirname "$(command -v nvcc)")/../include/cudnn.h" ] || export CMAKE_INCLUDE_PATH="$headers"
  # shellcheck disable=SC2086  # two words or none
  { timeout "$limit" cmake $generator -S . -B "$build" -DCMAKE_BUILD_TYPE=Release \
    -DREGARD_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native -DCMAKE_PREFIX_PATH="$PWD/build/cudnn-frontend" \
    -DREGARD_BUILD_TESTS=OFF -DREGARD_BUILD_BENCH=OFF -DREGARD_BUILD_CLI=OFF \
    -DREGARD_BUILD_EXAMPLES=OFF >>"$log" 2>&1 &&
    timeout "$limit" cmake --build "$build" --target regard_gpu_check -j "$jobs" >>"$log" 2>&1; } || {
    tail -n 40 "$log" >&2
    echo "gpu_check: not built within $limit s; $log has the rest" >&2
    exit 4
  }
fi

# What else says which machine this was, beside what the program reads itself.
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit \
    --format=csv >"$prefix.smi.csv" 2>>"$log" || rm -f "$prefix.smi.csv"
fi

# PyTorch's efficient backend comes last, where there is a PyTorch that sees the device.
beside=0
limit=$(($(left) / 8))
! timeout "$limit" python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
  >>"$log" 2>&1 || beside=$limit

# A loader's own path comes before its cache: a second cuDNN beside the toolkit's would be met first.
ldconfig -p 2>/dev/null | grep -q 'libcudnn\.so\.9 ' ||
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$wheels"

# The program keeps time itself; the limit is for a kernel that hangs.
rest=$(($(left) - beside - 15))
[ "$rest" -gt 10 ] || { echo "gpu_check: no time left after the build" >&2; exit 4; }
status=0
timeout -k 5 "$((rest + 4))" "$program" --seconds "$rest" --out "$prefix" >>"$log" 2>&1 || status=$?
[ "$status" -gt 1 ] || timeout -k 5 "$((beside + 10))" \
  python3 -B scripts/gpu_check_torch.py "$prefix" --seconds "$((beside * 2 / 3))" >>"$log" 2>&1 ||
  echo "gpu_check: PyTorch's backend was not measured; $log says why" >&2
case $status in
  3) tail -n 2 "$log" >&2 ;;
  0 | 1) cat "$prefix.md" ;;
  *)
    echo "gpu_check: ended with status $status; $log has the rest, which ends with" >&2
    tail -n 1 "$log" >&2
    [ ! -f "$prefix.md" ] || cat "$prefix.md"
    status=1
    ;;
esac
exit "$status"
