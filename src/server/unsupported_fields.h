// Known fields of the API that would change the answer and are not offered: refused by name, never
// ignored. Their neutral values are accepted.
#pragma once

#include "server/api_request.h"

namespace tandem {

// Refuses the first such field.
void RefuseUnsupported(ApiKind kind, JsonFields& fields);

}  // namespace tandem
