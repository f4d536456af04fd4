# offers.zsh FOLDER FILE: asks an interactive zsh, with completions of FOLDER, for what it offers for each line of standard
# input. FILE gets them, and a line END behind those of each.
zmodload zsh/zpty
zpty shell zsh -f -i
wait_for() { local out; zpty -r shell out "*$1*" }
zpty -w shell "PS1= PS2= LISTMAX=100000; unset zle_bracketed_paste; fpath=($1 \$fpath)"
zpty -w shell "autoload -Uz compinit; compinit -u -D; bindkey '^I' complete-word '^U' kill-whole-line"
zpty -w shell "compadd() {
    [[ \${@[1,(i)(-|--)]} == *-(O|A|D)\\ * ]] && { builtin compadd \"\$@\"; return }
    local -a found
    builtin compadd -A found \"\$@\"
    print -rl - \$found >>$2
    builtin compadd \"\$@\"
}"
# Said by the editor itself: what is written before it has the terminal, the terminal edits, and takes ^U for the line with its
# tab.
zpty -w shell "zle-line-init() { print -r IS''READY }; zle -N zle-line-init"
wait_for ISREADY
while read -r line; do
    zpty -w -n shell "$line"$'\t'
    zpty -w shell $'\x15'"print END >>$2"
    wait_for ISREADY
done
zpty -d shell
