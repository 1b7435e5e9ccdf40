# fish completion for durable. The candidates come from `durable __complete`; fish escapes the one it inserts.
function __durable_complete
    set -l words (commandline -opc)
    set -l program $words[1]
    set -e words[1]
    command $program __complete fish $words (commandline -ct | string collect --allow-empty) 2>/dev/null
end
complete -c durable -f -a '(__durable_complete)'
