#!/bin/sh
# Runs one of the programs here, or of the golden store maker, against RocketMQ 5.3.3; builds first.
#
#     run.sh --fetch               only fetch what the programs need, for 4.9 too; code 1 when it
#                                  cannot be had
#     run.sh --build               only build
#     run.sh CLASS [ARGUMENT...]   for example penstock.interop.Client
#     run.sh --4.9 ...             the same with the classes of 4.9.8, which has no servers here
#
# JAVA_OPTIONS come before the class. What RocketMQ writes besides stores goes to target/home.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
maker=$here/../../golden/maker
line=5.3 profile= target=$here/target
if [ "$1" = --4.9 ]; then
    line=4.9 profile=-P4.9 target=$here/target-4.9
    shift
fi
built=$target/built
if [ "$1" = --fetch ]; then
    for profile in '' -P4.9; do
        mvn -q -B -f "$here/pom.xml" $profile dependency:go-offline || exit 1
        mvn -q -B -f "$maker/pom.xml" $profile dependency:go-offline || exit 1
    done
    exit 0
fi
if [ ! -e "$built" ] || [ -n "$(find "$here/pom.xml" "$here/jars-$line.sha256" "$here/java" \
    "$here/java-$line" "$maker/java" "$maker/java-$line" -newer "$built")" ]; then
    mvn -q -B -f "$here/pom.xml" $profile process-classes >&2
    # the version is what was asked for, and the hashes say that it is what came
    if ! (cd "$target/lib" && export LC_ALL=C && sha256sum rocketmq-*.jar) |
        diff "$here/jars-$line.sha256" - >&2; then
        echo "these jars of RocketMQ are not those of jars-$line.sha256" >&2
        exit 1
    fi
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
