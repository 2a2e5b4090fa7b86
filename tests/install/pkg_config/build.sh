#!/bin/sh
# usage: build.sh OUTPUT      PKG_CONFIG_PATH says where regard.pc lies
# Builds OUTPUT of C++, and OUTPUT_c of C.
set -eu
here=$(dirname "$0")
# shellcheck disable=SC2046  # the flags are words
${CXX:-g++} -std=c++20 $(pkg-config --cflags regard) "$here/../main.cc" $(pkg-config --libs regard) -o "$1"
# shellcheck disable=SC2046
${CC:-cc} -std=c99 -Wall -Wextra -pedantic -Werror $(pkg-config --cflags regard) \
  "$here/../../../examples/c_attention.c" $(pkg-config --libs regard) -lm -o "${1}_c"
