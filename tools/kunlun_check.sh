#!/usr/bin/env bash
# What a Kunlun XPU3 answers to the questions of docs/kunlun.md, and whether this project's kernels compile for it.
# Nobody has run this on a device yet: the names of compiler, options and libraries are from public build files.
# usage: tools/kunlun_check.sh [probes|kernels]   (both)
#   XTDK_PATH      the vendor's compiler, bin/clang++ in it; or KUNLUN_CXX, the whole command
#   XRE_PATH       the runtime: include/ and so/ in it
#   KUNLUN_FLAGS   of the compiler, KUNLUN_LIBS of the linker, KUNLUN_FENCES for automatic fences: instead of the defaults
#   KUNLUN_OUT     the folder for what is compiled: build/kunlun
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
what=${1:-all}
cxx=${KUNLUN_CXX:-${XTDK_PATH:+$XTDK_PATH/bin/clang++}}
flags=${KUNLUN_FLAGS---xpu-arch=xpu3 -std=c++17 -O2 ${XRE_PATH:+-I$XRE_PATH/include}}
libs=${KUNLUN_LIBS--L${XRE_PATH:-.}/so -lxpurt}
fences=${KUNLUN_FENCES--mllvm -fix-mfence=all}
out=${KUNLUN_OUT:-build/kunlun}
limit=${KUNLUN_SECONDS:-60} # of a probe; one that hangs has answered too
if [ -z "$cxx" ] || ! command -v ${cxx%% *} > /dev/null; then
  echo "tools/kunlun_check.sh: expected the vendor's compiler, found none; set XTDK_PATH or KUNLUN_CXX" >&2
  exit 2
fi
mkdir -p "$out"
failed=0

probe() { # probe FILE FLAG...: prints the value of the model's flag that the device has
  local source=$1 name status
  shift
  name=$(basename "$source" .xpu)
  # shellcheck disable=SC2086 # words
  if ! $cxx $flags "$@" "$source" $libs -o "$out/$name" > "$out/$name.log" 2>&1; then
    echo "$name: does not compile; see $out/$name.log"
    return 1
  fi
  timeout "$limit" "$out/$name" 2>> "$out/$name.log"
  status=$?
  # decide("model.exit_counts_as_arrival", "1", "0", ...): the flag, its value if all goes well, and the other.
  [ $status = 124 ] && sed -n 's/.*decide("\(.*\)", "\(.*\)", "\(.*\)",.*/\1=\3: a launch did not end/p' "$source"
  # Findings of the emulator, which stands in for a device in this script's test, end a program with 1 or 3.
  case $status in
    0 | 1 | 3 | 124) ;;
    *) echo "$name: ended with $status; see $out/$name.log" && return 1 ;;
  esac
}

if [ "$what" != kernels ]; then
  for source in kernels_xpu_sim/probes/*.xpu; do
    case $source in
      # shellcheck disable=SC2086
      */fix_mfence.xpu) probe "$source" $fences || failed=1 ;;
      *) probe "$source" || failed=1 ;;
    esac
  done
fi

if [ "$what" != probes ]; then
  for source in kernels_xpu_sim/kernels/*.xpu; do
    name=$(basename "$source" .xpu)
    # The vendor's xpu/kernel, but the emulator's launch.h, which the host functions behind the kernels name.
    # shellcheck disable=SC2086
    if $cxx $flags --xpu-device-only -Ikernels_common/include -idirafter kernels_xpu_sim/sim/include -c "$source" \
      -o "$out/$name.o" > "$out/$name.log" 2>&1; then
      echo "$name: compiles for the device"
    else
      echo "$name: does not compile; see $out/$name.log"
      failed=1
    fi
  done
fi
exit $failed
