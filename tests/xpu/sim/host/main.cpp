#include "check.h"

int main(int, char** argv) {
  for (HostTest* test = HostTest::first(); test; test = test->next) {
    if (std::strcmp(test->name, argv[1]) != 0) continue;
    test->run();
    for (const Finding& f : take_findings()) {
      std::printf("a finding was left:\n%s", to_text(f).c_str());
      failed_line = 1;
    }
    return failed_line ? 4 : 0;
  }
  std::printf("no test %s\n", argv[1]);
  return 3;
}
