#!/bin/sh
# usage: build.sh OUTPUT      PKG_CONFIG_PATH says where regard.pc lies
set -eu
here=$(dirname "$0")
# shellcheck disable=SC2046  # the flags are words
${CXX:-g++} -std=c++20 $(pkg-config --cflags regard) "$here/../main.cc" $(pkg-config --libs regard) -o "$1"
