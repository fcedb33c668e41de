#!/usr/bin/env bash
# Inside the guest: the conformance suites of fabrics and transports over real
# queue pairs, both ends on the s-ends of two rails.
#   guest_conformance.sh verbs|ucx PROGRAM...
set -u
export BATON_FABRIC=$1 BATON_FABRIC_ADDRESS
shift
case $BATON_FABRIC in
ucx)
    export UCX_TLS=rc_verbs,self UCX_SOCKADDR_TLS_PRIORITY=rdmacm
    export UCX_UD_VERBS_ETH_DGID_CHECK=n UCX_NET_DEVICES=rxe_s0:1,rxe_s1:1
    ;;
esac
failed=0
for program; do
    echo "== $BATON_FABRIC $(basename "$program")"
    began=$SECONDS
    case $program in # suites of fabrics have two rails, of transports one
    *transport*) BATON_FABRIC_ADDRESS=10.77.0.1 ;;
    *) BATON_FABRIC_ADDRESS=10.77.0.1,10.77.1.1 ;;
    esac
    "$program" || failed=$((failed + 1))
    echo "figure: $BATON_FABRIC $(basename "$program"):" \
        "$((SECONDS - began)) s"
done
exit "$((failed > 0))"
