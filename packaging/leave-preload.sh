#!/bin/sh
# Before the library goes, its name leaves /etc/ld.so.preload: the loader would complain at the
# start of every program otherwise.
set -eu

case "${1:-}" in
    remove | deconfigure | 0) ;;
    *) exit 0 ;;
esac

list=/etc/ld.so.preload
[ -f "$list" ] || exit 0
grep -q 'libsdp\.so' "$list" || exit 0

rest=$(sed -e 's#[^[:space:]:]*libsdp\.so[^[:space:]:]*##g' "$list")
if [ -z "$(printf %s "$rest" | tr -d '[:space:]:')" ]; then
    rm -f "$list"
else
    printf '%s\n' "$rest" >"$list.sdp-new"
    chmod 644 "$list.sdp-new"
    mv "$list.sdp-new" "$list"
fi
echo "sdp: libsdp.so was taken out of $list" >&2
