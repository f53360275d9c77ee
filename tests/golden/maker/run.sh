#!/bin/sh
# Runs one of the maker's classes against one RocketMQ line; builds it first where needed.
#
#     run.sh 5.3|4.9 MakeStore clean|crashed|ipv6 DIR
#     run.sh 5.3|4.9 ReadStore DIR [commitLogBytes [consumeQueueBytes [slots [items]]]]
set -eu
line=$1 class=$2
shift 2
maker=$(cd "$(dirname "$0")" && pwd)
target=$maker/target-$line
built=$target/built
if [ ! -e "$built" ] || [ -n "$(find "$maker/java" "$maker/java-$line" -newer "$built")" ]; then
    case $line in 4.9) profile=-P4.9 ;; *) profile= ;; esac
    mvn -q -B -f "$maker/pom.xml" $profile process-classes >&2
    touch "$built"
fi
# RocketMQ keeps its own log files under user.home, and unmaps files through JDK internals
exec java -Xmx256m -Duser.home="$target/home" \
    --add-opens java.base/java.nio=ALL-UNNAMED --add-opens java.base/sun.nio.ch=ALL-UNNAMED \
    --add-opens java.base/jdk.internal.ref=ALL-UNNAMED \
    -cp "$target/classes:$target/lib/*" "penstock.golden.$class" "$@"
