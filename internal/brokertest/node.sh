#!/usr/bin/env bash
# Starts a RabbitMQ node that has nothing in common with any other on this machine: ports, data and name are its own. It
# prints the process group of the node, waits for the end of its standard input, and kills what is left of the node then.
#
#   node.sh DIR AMQP_PORT EPMD_PORT DIST_PORT [keep|remove]
#
# With "remove", DIR is removed in the end. Environment: RABBITMQ_SERVER, the server's start script.
set -um
dir=$1 port=$2 epmd=$3 dist=$4

mkdir -p "$dir"
echo '[].' >"$dir/plugins"
cat >"$dir/rabbitmq.conf" <<CONF
listeners.tcp.1 = 127.0.0.1:$port
loopback_users = none
log.console = true
log.console.level = warning
log.file = false
disk_free_limit.absolute = 50MB
raft.wal_max_size_bytes = 16777216
CONF

export HOME=$dir ERL_CRASH_DUMP=$dir/erl_crash.dump ERL_EPMD_PORT=$epmd ERL_EPMD_ADDRESS=127.0.0.1
export RABBITMQ_NODENAME=node$port@localhost RABBITMQ_DIST_PORT=$dist RABBITMQ_CONF_ENV_FILE=/dev/null
export RABBITMQ_CONFIG_FILE=$dir/rabbitmq.conf RABBITMQ_ENABLED_PLUGINS_FILE=$dir/plugins
export RABBITMQ_MNESIA_BASE=$dir/data RABBITMQ_GENERATED_CONFIG_DIR=$dir/generated RABBITMQ_FEATURE_FLAGS_FILE=$dir/feature_flags
export RABBITMQ_LOG_BASE=$dir/log RABBITMQ_LOGS=- RABBITMQ_PID_FILE=$dir/pid
# Without -start_epmd the node would leave an epmd behind; the one below ends with the node.
export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}'
unset NOTIFY_SOCKET

(
	epmd -address 127.0.0.1 -port "$epmd" &
	for _ in {1..200}; do
		(echo >"/dev/tcp/127.0.0.1/$epmd") 2>/dev/null && exec "${RABBITMQ_SERVER:?}"
		sleep 0.05
	done
	echo "epmd does not listen on port $epmd"
	exit 1
) </dev/null >>"$dir/log.txt" 2>&1 &
node=$!
disown "$node" # its end is no news
echo "$node"
exec >/dev/null
read -r _
kill -9 -- "-$node" 2>/dev/null
if [ "${5:-keep}" = remove ]; then
	rm -rf "$dir"
fi
