#!/usr/bin/env bash
# The package for Python: run.sh, with TOOLS (where environments are kept) and CARGO_TARGET_DIR. Builds the wheel as the tests are
# built, with BUILT as a part of the workspace, whose tests are built then, too. Installs it for the oldest and the newest version
# of Python that it is for, if they are here (VERSIONS names others), and runs the tests with each; what reads data, and the
# checker of types, with python3.
set -euo pipefail
cd "$(dirname "$0")"

: "${TOOLS:?a directory for tools}" "${CARGO_TARGET_DIR:?where cargo builds}"
package=../../crates/vellum-python
wheels=$CARGO_TARGET_DIR/wheels
main=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# Prints the program of a version, if it runs. pyenv has programs in PATH for versions that it does not choose.
find_python() {
    local program
    for program in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        "$program" -c 'import ensurepip, sys; print(sys.executable)' 2> /dev/null && return
    done
    return 1
}

# Makes an environment with these requirement files, unless it has them.
prepare() {
    local environment=$1 python=$2 stamp
    shift 2
    stamp=$(cat "$@" | sha256sum)
    if [ "$(cat "$environment/stamp" 2> /dev/null)" != "$stamp" ]; then
        rm -rf "$environment"
        "$python" -m venv "$environment"
        "$environment/bin/pip" install --quiet --disable-pip-version-check $(printf -- '-r %s ' "$@")
        echo "$stamp" > "$environment/stamp"
    fi
}

prepare "$TOOLS/maturin" python3 requirements-build.txt
rm -rf "$wheels"
if [ -n "${BUILT:-}" ]; then
    # maturin has cargo build the package alone, for which cargo chooses fewer features of its dependencies than for the workspace:
    # by itself it would build nearly all of them once more.
    own=$TOOLS/cargo-for-maturin cargo=$(command -v "${CARGO:-cargo}")
    mkdir -p "$own"
    printf '#!/bin/sh\n[ "$1" = rustc ] || exec "%s" "$@"\nshift\nexec "%s" build --workspace --tests "$@"\n' "$cargo" "$cargo" > "$own/cargo"
    chmod +x "$own/cargo"
    PATH=$own:$PATH
fi
"$TOOLS/maturin/bin/maturin" build --quiet --locked --profile dev --manifest-path "$package/Cargo.toml" --out "$wheels"

run_tests() {
    local environment=$1
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheels"/vellum-*.whl
    PYTHONDONTWRITEBYTECODE=1 "$environment/bin/python" -m pytest -q -p no:cacheprovider .
}

for version in ${VERSIONS:-3.9 3.13}; do
    if python=$(find_python "$version") && [ "$version" != "$main" ]; then
        echo "Python $version"
        prepare "$TOOLS/python-$version" "$python" requirements.txt
        run_tests "$TOOLS/python-$version"
    fi
done
echo "Python $main"
prepare "$TOOLS/python-$main" python3 requirements.txt requirements-data.txt
run_tests "$TOOLS/python-$main"
# Modules beside the package would be taken for it.
"$TOOLS/python-$main/bin/python" -m mypy --strict --cache-dir /dev/null -p vellum
