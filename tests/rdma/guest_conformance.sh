#!/usr/bin/env bash
# Inside the guest: the conformance suites of fabrics and transports over real
# queue pairs, both ends on the s-ends of two rails.
#   guest_conformance.sh verbs|ucx PROGRAM...
set -u
export BATON_FABRIC=$1 BATON_FABRIC_ADDRESS
export BATON_SLOW=${BATON_SLOW:-5} # emulated processors: limits of time grow
export BATON_DIVIDE=${BATON_DIVIDE:-4} # and filling memory takes its time
shift
case $BATON_FABRIC in
ucx)
    export UCX_TLS=rc_verbs,self UCX_SOCKADDR_TLS_PRIORITY=rdmacm
    export UCX_UD_VERBS_ETH_DGID_CHECK=n UCX_NET_DEVICES=rxe_s0:1
    export BATON_UCX_TLS=rc_verbs,self BATON_UCX_ADDRESS=10.77.0.1
    ;;
esac
failed=0
for program; do
    began=$SECONDS name="$BATON_FABRIC $(basename "$program")"
    echo "== $name"
    case $program in
    *test_kv_*) # variants of one rail use the first of each list
        BATON_FABRIC_ADDRESS=10.77.0.1,10.77.1.1
        device=rxe_s0:1,rxe_s1:1
        ;;
    *) # of transports: one rail
        BATON_FABRIC_ADDRESS=10.77.0.1
        device=rxe_s0:1
        ;;
    esac
    [ "$BATON_FABRIC" != ucx ] || export BATON_FABRIC_DEVICE=$device
    "$program" || failed=$((failed + 1))
    echo "figure: $name: $((SECONDS - began)) s"
done
exit "$((failed > 0))"
