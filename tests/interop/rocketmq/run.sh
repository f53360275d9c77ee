#!/bin/sh
# Runs one of the programs here, or of the golden store maker, against RocketMQ 5.3.3; builds first.
#
#     run.sh --fetch               only fetch what the programs need, for 4.9 too; code 1 when it
#                                  cannot be had
#     run.sh --build               only build
#     run.sh CLASS [ARGUMENT...]   for example penstock.interop.Client
#
# JAVA_OPTIONS come before the class. What RocketMQ writes besides stores goes to target/home.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
maker=$here/../../golden/maker
target=$here/target
built=$target/built
if [ "$1" = --fetch ]; then
    mvn -q -B -f "$here/pom.xml" dependency:go-offline || exit 1
    mvn -q -B -f "$maker/pom.xml" -P4.9 dependency:go-offline || exit 1
    exit 0
fi
if [ ! -e "$built" ] || [ -n "$(find "$here/pom.xml" "$here/java" "$maker/java" "$maker/java-5.3" \
    -newer "$built")" ]; then
    mvn -q -B -f "$here/pom.xml" process-classes >&2
    touch "$built"
fi
[ "$1" != --build ] || exit 0
mkdir -p "$target/home"
# RocketMQ keeps its own log files under user.home, and unmaps files through JDK internals
exec java -Xmx512m -XX:MaxDirectMemorySize=512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -Duser.home="$target/home" -Drocketmq.home.dir="$target/home" \
    --add-opens java.base/java.nio=ALL-UNNAMED --add-opens java.base/sun.nio.ch=ALL-UNNAMED \
    --add-opens java.base/jdk.internal.ref=ALL-UNNAMED \
    ${JAVA_OPTIONS:-} -cp "$target/classes:$target/lib/*" "$@"
