# fish completion for durable. The candidates come from `durable __complete`; fish escapes the one it inserts.
function __durable_complete
    set -l words (commandline -opc)
    set -l program $words[1]
    set -e words[1]
    set -l token (commandline -ct)
    command $program __complete fish $words "$token" 2>/dev/null
end
complete -c durable -f -a '(__durable_complete)'
