# Sourced by scripts that need a certificate: `certified site north`, `certified operator operator`.
# The key is created in the caller's own volume and stays there. Only the request and the signed
# certificate pass through /exchange; neither is secret. An existing certificate is kept.
certified() {
    home=$FEDELMY_STATE/identity
    if [ -e "$home/certificate.pem" ]; then
        return
    fi
    trap 'exit 143' TERM INT # as process 1, a waiting shell would ignore signals
    if [ ! -e "$home/key.pem" ]; then
        fedelmy-node identity init "--$1" "$2"
    fi
    cp "$home/request.csr" "/exchange/.$2"
    mv "/exchange/.$2" "/exchange/$2.$1.csr" # atomic
    until [ -e "/exchange/$2.$1.pem" ]; do
        sleep 0.2
    done
    fedelmy-node identity install "/exchange/$2.$1.pem"
    trap - TERM INT
}
