#!/usr/bin/env bash
# Finds or starts the services that tests need: RabbitMQ.
#
#   services.sh run COMMAND...   runs a command with them, then stops what it started
#   services.sh start            starts what isn't there and leaves it running; prints what to export
#   services.sh stop             stops what start started
#
# A broker is taken from ORCHESTRATOR_TEST_AMQP_URL; without it from amqp://guest:guest@127.0.0.1:5672/ if this user may
# administer it. Else an installed RabbitMQ is started on ports of its own, else RabbitMQ is installed first (Debian, as
# root), else this says what is missing and fails. Tests make and delete virtual hosts on the broker.
set -uo pipefail
cd "$(dirname "$0")/.."

default=amqp://guest:guest@127.0.0.1:5672/
state=$PWD/.services
say() { echo "services: $*" >&2; }
die() {
	say "$@"
	exit 1
}

# answers URL: something that speaks AMQP listens there.
answers() {
	local rest=${1#*://} host port first
	rest=${rest##*@} rest=${rest%%/*} rest=${rest%%\?*}
	host=${rest%:*} port=5672
	[[ $rest == *:* ]] && port=${rest##*:}
	first=$(timeout 10 bash -c 'exec 3<>"/dev/tcp/$0/$1" && printf "AMQP\0\0\011\001" >&3 && head -c 1 <&3 | od -An -tu1' "$host" "$port" 2>/dev/null)
	[ "${first// /}" = 1 ]
}

# administers NODE HOME [EPMD_PORT]: this user may make virtual hosts on that node.
administers() {
	[[ $(echo 'true = rabbit:is_running().' | env HOME="$2" ${3:+ERL_EPMD_PORT="$3"} erl_call -h "services$$" -sname "$1" -e 2>/dev/null) == '{ok, true}' ]]
}

# found URL: a broker is there that tests can use.
found() {
	answers "$1" || return 1
	local node home=${ORCHESTRATOR_TEST_AMQP_HOME:-/var/lib/rabbitmq}
	for node in ${ORCHESTRATOR_TEST_AMQP_NODE:-rabbit@localhost "rabbit@$(hostname -s)"}; do
		if administers "$node" "$home" "${ORCHESTRATOR_TEST_AMQP_EPMD_PORT:-}"; then
			export ORCHESTRATOR_TEST_AMQP_URL=$1 ORCHESTRATOR_TEST_AMQP_NODE=$node ORCHESTRATOR_TEST_AMQP_HOME=$home
			return 0
		fi
	done
	return 2
}

# server prints the script that starts an installed RabbitMQ as the user who calls it; Debian's on the PATH changes users.
server() {
	local path
	for path in "${RABBITMQ_SERVER:-}" /usr/lib/rabbitmq/bin/rabbitmq-server "$(command -v rabbitmq-server)"; do
		if [ -n "$path" ] && [ -x "$path" ]; then
			readlink -f "$path"
			return 0
		fi
	done
	return 1
}

install() {
	local how='install it (Debian: apt-get install rabbitmq-server), or name one that runs in ORCHESTRATOR_TEST_AMQP_URL'
	command -v apt-get >/dev/null || die "there is no RabbitMQ; $how"
	[ "$(id -u)" = 0 ] || die "there is no RabbitMQ, and only root can install it; $how"
	say "installing RabbitMQ"
	export DEBIAN_FRONTEND=noninteractive
	{ apt-get update -qq && apt-get install -y -qq --no-install-recommends rabbitmq-server; } >&2 ||
		die "there is no RabbitMQ, and apt-get can't install it; $how"
}

# launch DIR: starts a node that ends with descriptor 9, which this opens, and exports where it is.
launch() {
	local dir=$1 port epmd dist node holder tries
	RABBITMQ_SERVER=$(server) || die "rabbitmq-server isn't executable"
	export RABBITMQ_SERVER
	for tries in 1 2 3; do
		port=$((20000 + RANDOM % 4000)) epmd=$((24000 + RANDOM % 4000)) dist=$((28000 + RANDOM % 4000))
		rm -rf "$dir" && mkdir -p "$dir" && mkfifo "$dir/hold" || die "can't write to $dir"
		setsid internal/brokertest/node.sh "$dir" "$port" "$epmd" "$dist" remove <"$dir/hold" >"$dir/group" &
		holder=$!
		exec 9>"$dir/hold"
		node=node$port@localhost
		for _ in {1..300}; do
			if answers "amqp://127.0.0.1:$port" && administers "$node" "$dir" "$epmd"; then
				export ORCHESTRATOR_TEST_AMQP_URL=amqp://guest:guest@127.0.0.1:$port/ ORCHESTRATOR_TEST_AMQP_NODE=$node
				export ORCHESTRATOR_TEST_AMQP_HOME=$dir ORCHESTRATOR_TEST_AMQP_EPMD_PORT=$epmd
				say "started a RabbitMQ on port $port"
				return 0
			fi
			[ -s "$dir/group" ] && ! kill -0 "$(<"$dir/group")" 2>/dev/null && break # its epmd may live on
			sleep 0.2
		done
		say "the RabbitMQ doesn't start (try $tries of 3):"
		tail -n 20 "$dir/log.txt" >&2
		exec 9>&-
		wait "$holder" # it removes $dir
	done
	exit 1
}

# ensure DIR: there is a broker in the end; one that has to be started lives in DIR.
ensure() {
	local url=${ORCHESTRATOR_TEST_AMQP_URL:-}
	if [ -n "$url" ]; then
		found "$url" && return 0
		case $? in
		1) die "nothing answers like a RabbitMQ at ORCHESTRATOR_TEST_AMQP_URL=$url" ;;
		*) die "the RabbitMQ at ORCHESTRATOR_TEST_AMQP_URL=$url can't be administered by this user: name its node and the folder of its Erlang cookie in ORCHESTRATOR_TEST_AMQP_NODE and ORCHESTRATOR_TEST_AMQP_HOME" ;;
		esac
	fi
	if [ -r "$state/env" ]; then
		# shellcheck source=/dev/null
		. "$state/env"
		found "$ORCHESTRATOR_TEST_AMQP_URL" && return 0
		unset "${!ORCHESTRATOR_TEST_AMQP_@}"
	fi
	if found "$default"; then
		say "RabbitMQ at $default"
		return 0
	fi
	if ! server >/dev/null; then
		install
		if found "$default"; then
			say "RabbitMQ at $default"
			return 0
		fi
	fi
	command -v erl_call >/dev/null || die "there is no erl_call on the PATH; it comes with Erlang (Debian: erlang-base)"
	launch "$1"
}

exports() {
	local name
	for name in "${!ORCHESTRATOR_TEST_AMQP_@}"; do
		printf 'export %s=%q\n' "$name" "${!name}"
	done
}

case "${1:-}" in
run)
	shift
	own=$(mktemp -d "${TMPDIR:-/tmp}/orchestrator-services-XXXXXX")
	trap 'rm -rf "$own"' EXIT
	ensure "$own/rabbitmq"
	"$@" 9>&-
	code=$?
	if { true >&9; } 2>/dev/null; then
		exec 9>&- # the node ends with it
		wait
	fi
	exit "$code"
	;;
start)
	mkdir -p "$state"
	ensure "$state/rabbitmq"
	if { true >&9; } 2>/dev/null; then
		setsid sleep infinity >/dev/null 2>&1 </dev/null & # it holds descriptor 9
		echo "$!" >"$state/holder"
		exports >"$state/env"
		say "make services-stop stops it"
	fi
	exports
	;;
stop)
	if [ -r "$state/holder" ]; then
		kill "$(<"$state/holder")" 2>/dev/null && say "stopped"
		while [ -d "$state/rabbitmq" ]; do sleep 0.1; done
	fi
	rm -rf "$state"
	;;
*)
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
