package cli

// The scripts of the shells. Each asks the tool itself for the completions of a word, so a script need not change
// when a command does. TOOL, NAMES, COMPLETE and FILES are replaced. A program that is called by a classic name is
// never run: it may be the C program. The tool is asked in its place.

// bashScript needs no package bash-completion. Bash splits a word at each character of COMP_WORDBREAKS, and those of
// soft_lo@127.0.0.1 and --ib-dev=soft_lo are among them. So the script takes the words from the line, and removes
// from each candidate the part that bash takes for a word of its own.
const bashScript = `# bash completion for TOOL
_TOOL_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" tool=TOOL words word head candidate
    read -r -a words <<< "$line"
    if [[ "$line" == *[[:space:]] ]]; then
        words+=("")
    fi
    if [[ "${words[0]##*/}" == TOOL ]]; then
        tool="${words[0]/#\~/$HOME}"
    fi
    word="${words[${#words[@]}-1]}"
    head="${word%"${word##*["$COMP_WORDBREAKS"]}"}"
    COMPREPLY=()
    while IFS=$'\t' read -r candidate _; do
        if [[ "$candidate" == FILES ]]; then
            compopt -o default 2>/dev/null
            continue
        fi
        if [[ "$candidate" == *= ]]; then
            compopt -o nospace 2>/dev/null
        fi
        COMPREPLY+=("${candidate#"$head"}")
    done < <("$tool" COMPLETE "${words[@]}" 2>/dev/null)
}
complete -F _TOOL_complete NAMES
`

const fishScript = `# fish completion for TOOL
function __TOOL_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l tool TOOL
    if test (string replace -r '.*/' '' -- $words[1]) = TOOL
        set tool $words[1]
    end
    for line in ($tool COMPLETE $words 2>/dev/null)
        if test "$line" = FILES
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
for name in NAMES
    complete -c $name -e
    complete -c $name -f -a '(__TOOL_complete)'
end
`

const zshScript = `#compdef NAMES
# zsh completion for TOOL
_TOOL() {
    local tool=TOOL line text
    local -a whole open
    if [[ "${words[1]:t}" == TOOL ]]; then
        tool="${~words[1]}"
    fi
    for line in "${(@f)$("$tool" COMPLETE "${(@)words[1,CURRENT-1]}" "$PREFIX" 2>/dev/null)}"; do
        text="${line%%$'\t'*}"
        if [[ "$text" == FILES ]]; then
            _files
        elif [[ -n "$text" ]]; then
            line="${text//:/\\:}:${line#"$text"}"
            line="${line/:$'\t'/:}"
            if [[ "$text" == *= ]]; then
                open+=("$line")
            else
                whole+=("$line")
            fi
        fi
    done
    _describe TOOL whole -- open -S ''
}
if [[ "$funcstack[1]" == _TOOL ]]; then
    _TOOL "$@"
else
    compdef _TOOL NAMES
fi
`
