# bash completion for durable. The candidates come from `durable __complete`, quoted for the place they go to:
# a key such as `a b` or `$(x)` is inserted as text and never evaluated.
_durable() {
    local candidate
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("$candidate")
    done < <("$1" __complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/=:] ]]; then
        compopt -o nospace
    fi
}
complete -o nosort -F _durable durable
