#!/usr/bin/env bash
# What a Kunlun XPU3 answers to the questions of docs/extend/kunlun.md, and whether this project's kernels compile for it and
# write there what they must.
# Nobody has run this on a device yet: the names of compiler, options and libraries are from public build files.
# usage: tools/kunlun_check.sh [probes | kernels [NAME...]]   (both, and all kernels)
#   XTDK_PATH      the vendor's compiler, bin/clang++ in it; or KUNLUN_CXX, the whole command
#   XRE_PATH       the runtime: include/ and so/ in it
#   KUNLUN_FLAGS   of the compiler, KUNLUN_LIBS of the linker, KUNLUN_FENCES for automatic fences: instead of the defaults
#   KUNLUN_EXPORTS options with which a program's own functions can be looked up by name
#   KUNLUN_CASES   the calls that kernels make, where there is no specdec_hal: python -m
#                  specdec_hal_conformance.device_cases --out FILE writes them on another machine
#   KUNLUN_OUT     the folder for what is compiled: build/kunlun
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
what=${1:-all}
kernels=("${@:2}")
if [ ${#kernels[@]} = 0 ]; then
  for source in kernels_xpu_sim/kernels/*.xpu; do kernels+=("$(basename "$source" .xpu)"); done
fi
cxx=${KUNLUN_CXX:-${XTDK_PATH:+$XTDK_PATH/bin/clang++}}
flags=${KUNLUN_FLAGS---xpu-arch=xpu3 -std=c++17 -O2 ${XRE_PATH:+-I$XRE_PATH/include}}
libs=${KUNLUN_LIBS--L${XRE_PATH:-.}/so -lxpurt}
fences=${KUNLUN_FENCES--mllvm -fix-mfence=all}
exports=${KUNLUN_EXPORTS--rdynamic -ldl}
out=${KUNLUN_OUT:-build/kunlun}
limit=${KUNLUN_SECONDS:-60} # of a probe, or an op; a probe that hangs has answered too
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
  # PROBE("model.exit_counts_as_arrival", "1", "0", ...): the flag, its value if all goes well, and the other.
  [ $status = 124 ] && sed -n 's/.*PROBE("\(.*\)", "\(.*\)", "\(.*\)",.*/\1=\3: a launch did not end/p' "$source"
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

# Kernels are whole programs here: what they launch, and how, is in their files too. The structures that they take are
# filled in and compared by device/replay.cpp, which a file of calls is for.
compile() { # compile SOURCE: an object for both sides of a program
  # shellcheck disable=SC2086
  $cxx $flags -DSPECDEC_XPU_DEVICE -Ikernels_common/include -c "$1" -o "$out/$(basename "${1%.*}").o" \
    > "$out/$(basename "${1%.*}").log" 2>&1
}

if [ "$what" != probes ]; then
  cases=${KUNLUN_CASES:-$out/cases.bin}
  if [ ! -f "$cases" ] && ! ${PYTHON:-python3} -m specdec_hal_conformance.device_cases --out "$cases"; then
    echo "tools/kunlun_check.sh: expected calls to make, found no $cases; write it where specdec_hal is installed" >&2
    exit 2
  fi
  ${PYTHON:-python3} -m specdec_hal.ops.cpp # writes the headers of the ops
  objects=()
  for name in "${kernels[@]}"; do
    if compile "kernels_xpu_sim/kernels/$name.xpu"; then
      objects+=("$out/$name.o")
    else
      echo "$name: does not compile; see $out/$name.log"
      failed=1
    fi
  done
  # shellcheck disable=SC2086
  if ! compile kernels_xpu_sim/device/replay.cpp ||
    ! $cxx "${objects[@]}" "$out/replay.o" $libs $exports -o "$out/replay" >> "$out/replay.log" 2>&1; then
    echo "replay: does not compile, so that no kernel runs; see $out/replay.log"
    exit 1
  fi
  # Each op for itself, so that one that hangs does not keep the others from running.
  for op in $("$out/replay" "$cases" --list); do
    timeout "$limit" "$out/replay" "$cases" "$op" 2>> "$out/replay.log"
    case $? in
      0) ;;
      124) echo "$op: did not end" && failed=1 ;;
      *) failed=1 ;;
    esac
  done
fi
exit $failed
